#!/usr/bin/env bash
# Written by `highrank @writer@`; submit it from the folder where it was written.
@directives@
@prologue@set -uo pipefail

# not empty once SLURM or its user has asked this shell to stop; an array's task needs it
# shellcheck disable=SC2034
asked=
trap 'asked=1' TERM USR1

# run SIGNAL COMMAND...: the command, to which SIGUSR1 is passed on as SIGNAL
run() {
    local process code
    "${@:2}" &
    process=$!
    trap 'asked=1; kill -s "$1" "$process" 2>/dev/null' USR1
    while :; do
        wait "$process" # until its end or a signal
        code=$?
        kill -0 "$process" 2>/dev/null || break
    done
    trap 'asked=1' USR1
    return "$code"
}

# queue a job again that was asked to stop, and has saved; what finishes this script calls it
# shellcheck disable=SC2329
requeue() {
    local job=$SLURM_JOB_ID
    # the last task of an array has the number of the whole array
    if [[ -n ${SLURM_ARRAY_TASK_ID-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
    # SLURM shows a job that it ends as COMPLETING: one that was cancelled must not start again, and
    # one that was preempted is queued again already
    if [[ ! $(scontrol show job "$job") =~ JobState=RUNNING|Reason=TimeLimit ]]; then
        echo "stopped, and SLURM ends the job; if you cancelled it, submit it to resume"
    elif scontrol requeue "$job"; then
        echo "stopped, and the job is queued again; it resumes from its last checkpoint"
    else
        echo "stopped, but SLURM does not queue the job again; submit it to resume"
    fi
}

@prepare@
run @command@
code=$?
@finish@
exit "$code"
