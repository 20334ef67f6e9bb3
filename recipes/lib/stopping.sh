# shellcheck shell=bash
# Stop a recipe at SIGTERM, SIGHUP or Ctrl-C: the programs of the running stage get SIGTERM, at which
# a training run saves a checkpoint and ends. A second signal kills them.

stage_process=''                        # process of the running stage
stop_signal=''                          # first signal to stop
stop_second=0                           # value of SECONDS at the first signal
stage_status=0                          # exit code of the last stage
signal_came=''                          # yes after a signal, until it is emptied

# descendants PID: print all processes that it has started, and theirs.
descendants() {
    local child
    for child in $(cat -- /proc/"$1"/task/*/children 2>/dev/null || true); do
        echo "$child"
        descendants "$child"
    done
}

# signal_stage SIGNAL: send it to all programs of the stage that still run.
signal_stage() {
    local programs
    mapfile -t programs < <(descendants "$stage_process")
    kill -s "$1" -- ${programs[@]+"${programs[@]}"} 2>/dev/null || true
}

# on_stop SIGNAL: the trap. A closing terminal sends SIGHUP several times within a moment.
on_stop() {
    signal_came=yes
    if [[ -z $stop_signal ]]; then
        stop_signal=$1 stop_second=$SECONDS
        if [[ -z $stage_process ]]; then end_stopped "stopped by SIG$1"; fi
        log "SIG$1: ending the stage; a training run saves a checkpoint first. A second signal ends it at once"
        signal_stage TERM
    elif [[ -n $stage_process ]] && ((SECONDS - stop_second > 1)); then
        log "SIG$1 again: killing the stage"
        signal_stage STOP               # otherwise one may start another in between
        signal_stage KILL
    fi
}
trap 'on_stop TERM' TERM
trap 'on_stop HUP' HUP
trap 'on_stop INT' INT

# end_stopped MESSAGE: exit with code 75, which means "start again"; after Ctrl-C end by SIGINT, which
# also ends a loop over several recipes.
end_stopped() {
    if [[ -e ${run_dir-}/.lock ]]; then     # workers that load data may need some seconds to end
        exec 9>>"$run_dir/.lock"
        flock --wait 10 9 || true
    fi
    log "$1; the same command resumes it"
    if [[ $stop_signal == INT ]]; then
        trap - INT
        kill -s INT $$
    fi
    exit 75
}

# run_watched FUNCTION [WORD…]: run it in the background, since a trap must not wait for its end, and
# set stage_status to its exit code.
run_watched() {
    "$@" &
    stage_process=$! signal_came=yes stage_status=0
    while [[ -n $signal_came ]]; do     # a signal interrupts the wait
        signal_came=''
        # shellcheck disable=SC2034
        wait "$stage_process" && stage_status=0 || stage_status=$?
    done
    stage_process=''
}

# run_piped FUNCTION FILE: run a stage, show and keep its output; to be run by run_watched. The pipe's
# other programs outlive the stage.
run_piped() {
    trap : TERM HUP
    set +e                              # otherwise the pipe's failure ends us silently
    (
        trap 'exit 143' TERM HUP        # after the program that runs
        set -e
        "$1"
    ) 2>&1 | (trap '' TERM HUP && exec tee -- "$2") | (trap '' TERM HUP && without_chatter >&2)
    exit "${PIPESTATUS[0]}"
}
