# shellcheck shell=bash
# What a recipe does when it is told to stop by SIGTERM, SIGHUP or Ctrl-C: the programs of the running
# stage get SIGTERM, upon which a training saves a checkpoint and ends. A second signal kills them.

stage_process=''                        # of the running stage
stop_signal=''                          # the first that came
stop_second=0                           # when it came, in SECONDS
stage_status=0                          # exit code of the last stage
signal_came=''                          # since this was emptied

# descendants PID: all processes that it has started, and theirs.
descendants() {
    local child
    for child in $(cat -- /proc/"$1"/task/*/children 2>/dev/null || true); do
        echo "$child"
        descendants "$child"
    done
}

# signal_stage SIGNAL: to all programs of the stage, those that have just ended aside.
signal_stage() {
    local programs
    mapfile -t programs < <(descendants "$stage_process")
    kill -s "$1" -- ${programs[@]+"${programs[@]}"} 2>/dev/null || true
}

# on_stop SIGNAL: our trap. A terminal that closes sends SIGHUP by several ways within a moment.
on_stop() {
    signal_came=yes
    if [[ -z $stop_signal ]]; then
        stop_signal=$1 stop_second=$SECONDS
        if [[ -z $stage_process ]]; then end_stopped "stopped by SIG$1"; fi
        log "SIG$1: ending the stage; a training saves a checkpoint first. A second signal ends it at once"
        signal_stage TERM
    elif [[ -n $stage_process ]] && ((SECONDS - stop_second > 1)); then
        log "SIG$1 again: killing the stage"
        signal_stage STOP               # or one may start another while we look
        signal_stage KILL
    fi
}
trap 'on_stop TERM' TERM
trap 'on_stop HUP' HUP
trap 'on_stop INT' INT

# end_stopped MESSAGE: with exit code 75, to be started again; by SIGINT where that has stopped it, so
# that a loop which runs several recipes ends, too.
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

# run_piped FUNCTION FILE: run a stage, show and keep what it prints, and set stage_status to its exit
# code. In the background: a trap must not wait for its end. The pipe's other programs stay to the last.
run_piped() {
    {
        trap : TERM HUP
        set +e                          # or the pipe's failure ends us without a word
        (
            trap 'exit 143' TERM HUP    # after the program that runs
            set -e
            "$1"
        ) 2>&1 | (trap '' TERM HUP && exec tee -- "$2") | (trap '' TERM HUP && without_chatter >&2)
        exit "${PIPESTATUS[0]}"
    } &
    stage_process=$! signal_came=yes stage_status=0
    while [[ -n $signal_came ]]; do     # one that comes ends the waiting
        signal_came=''
        # shellcheck disable=SC2034
        wait "$stage_process" && stage_status=0 || stage_status=$?
    done
    stage_process=''
}
