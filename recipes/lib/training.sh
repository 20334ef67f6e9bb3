# shellcheck shell=bash
# What recipes share that train one configuration: the run with its configuration, the training, the
# record. They have these options: stage, stop_stage, conf, name, exp_dir, set.
# shellcheck source=../lib/recipe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/recipe.sh"

# Blocks of a configuration: measures of the test set by highrank analyse.
# shellcheck disable=SC2034
measures=(spectrum kld predictions retention)

# shellcheck disable=SC2154
# open_configured_run: the run's directory, and its configuration, checked before anything is done.
open_configured_run() {
    local status
    if [[ -n $name ]]; then check_run_name --name "$name"; else check_run_name --conf "$conf"; fi
    exp_dir=$(absolute "${exp_dir:-$repository/exp}")   # open_run goes elsewhere
    open_run "$exp_dir/${recipe_dir##*/}/${name:-$conf}"
    config=$run_dir/config.yaml
    log "configuration $conf into $run_dir (a new one is checked by fairseq: some seconds)"
    run highrank configure "$recipe_dir/conf/$conf.yaml" --output "$config" \
        ${set[@]+"${set[@]/#/--set=}"} || {
        status=$?
        abandon_run
        exit "$status"
    }
    check_launch
}

# check_launch: what the launcher refuses is told before hours go into the data. With --dry-run among
# its options it prints all that it would do, and nothing is done.
check_launch() {
    local launcher status=0 dry
    launcher=$(launch_words --dry-run --log-dir "$run_dir/train/logs")
    [[ -n $launcher ]] || return 0
    dry=$(bash -c "$launcher -- $(highrank command train "$config" -- DATA \
        --save-dir "$run_dir/train")") || status=$?
    if ((status != 0)); then
        log "error: highrank launch refuses these options: ${launch-} (and the block launch of $conf)"
    elif [[ " ${launch-} " == *" --dry-run "* ]]; then
        printf '%s\n' "$dry"
        log "nothing was done: --launch has --dry-run"
    else
        return 0
    fi
    abandon_run
    exit "$status"
}

setting() { highrank setting "$config" "$1"; }

# asks_for BLOCK: does the configuration have something in it?
asks_for() { [[ $(setting "$1") != '{}' ]]; }

# run_block FILE BLOCK [WORD…]: print and run the command of a block, which stays in FILE. If
# $through is set, that runs it.
run_block() {
    { printf '%s' "${through-}"; highrank command "$2" "$config" -- "${@:3}"; } >"$1"
    log "+ $(<"$1")"
    bash "$1"
}

# training_key: options that a training depends on. How many GPUs share an update is one of them only
# if they share no number of tokens: then a process more is a larger batch.
training_key() {
    local words
    words=$(launch_words)
    setting train
    highrank setting "$config" launch.effective_tokens 2>/dev/null || true
    if [[ ${launch-} =~ --effective-tokens[=\ ]([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; fi
    if [[ -n $words && $words != *--effective-tokens* ]]; then process_count "$words"; fi
}

# process_count WORDS: how many processes `highrank launch` would start, "processes N".
process_count() {
    local nodes=1 each
    if [[ $1 =~ .*--nodes[=\ ]([0-9]+) ]]; then nodes=${BASH_REMATCH[1]}; fi
    if [[ $1 =~ .*--(gpus-per-node|processes)[=\ ]([0-9]+) ]]; then
        each=${BASH_REMATCH[2]}
    else
        each=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')
    fi
    echo "processes $((nodes * each))"
}

# launch_words [WORD…]: `highrank launch` with the words of the option launch and of the block of that
# name, and further ones; nothing if there are none of these.
launch_words() {
    local words
    read -ra words <<<"${launch-}"
    if ((${#words[@]} > 0)) || [[ $(setting launch) != '{}' ]]; then
        highrank command launch "$config" -- ${words[@]+"${words[@]}"} "$@"
    fi
}

# train_block BLOCK DATA [WORD…]: fairseq-train with the options of a block into $out, where it
# continues from checkpoint_last.pt if there is one; the disk must have room for checkpoints.
# All that it says goes to train.log. With the recipe's option launch, or a block of that name,
# `highrank launch` starts it on several processes; if that has given it to SLURM, the exit code is
# 75 until the job has come to its end.
train_block() {
    local launcher finished=$out/logs/finished
    launcher=$(launcher)
    if [[ -n $launcher && -e $finished ]]; then
        log "trained before: $finished"
        return
    fi
    need_space "$(checkpoint_space "$1" "$2")"
    {
        printf '%s' "$launcher"
        highrank command "$1" "$config" -- "$2" --save-dir "$out" \
            --tensorboard-logdir "$out/tensorboard" --log-format json "${@:3}"
    } >"$out/command.sh"
    log "+ $(<"$out/command.sh")"
    call_other_nodes "$launcher"
    bash "$out/command.sh" 2>&1 | tee --append "$out/train.log" |
        highrank progress "$config" --block "$1"
    if [[ -n $launcher && ! -e $finished ]]; then
        log "the training has not ended here; when it has, there is $finished"
        return 75
    fi
}

# checkpoint_space BLOCK DATA: bytes of the checkpoints to come, the next one at least.
checkpoint_space() {
    local all next
    all=$(highrank training-space "$config" "$2" --block "$1")
    if [[ -e $out/checkpoint_last.pt ]]; then
        next=$(bytes_of "$out/checkpoint_last.pt")
        all=$((all - $(bytes_of "$out")))
        if ((all < next)); then all=$next; fi
    fi
    echo "$all"
}

# launcher: the words before those of fairseq-train, if any.
launcher() {
    local line
    line=$(launch_words --log-dir "$out/logs")
    if [[ -n $line ]]; then printf '%s -- \\\n    ' "$line"; fi
}

# call_other_nodes LAUNCHER: say what they are to run, where none is started from here.
call_other_nodes() {
    if [[ $1 == *--nodes* && $1 != *--slurm* ]]; then
        log "now, on every other node: cd ${PWD@Q} && PATH=\$PWD/.venv/bin:\$PATH bash ${out@Q}/command.sh"
    fi
}

# further BLOCK CHECKPOINT DATA: an evaluation of the test set by a command of our own, if it is asked
# for and not done.
further() {
    if ! asks_for "$1" || [[ -e $out/$1.json ]]; then return; fi
    highrank command "$1" "$config" -- "$2" "$3" --split test --output "$out/$1.json" >"$out/$1.sh"
    log "+ $(<"$out/$1.sh")"
    bash "$out/$1.sh"
}

# The score stage writes scores.json, and the record beside the run's other results: done again if
# somebody has removed that.
forget_score_without_record() {
    if [[ ! -e $run_dir/results.json ]]; then remove_output "$run_dir/score"; fi
}

# show_published: the papers' scores of the recipe's task beside those of this run.
show_published() {
    highrank published "${recipe_dir##*/}" --results "$run_dir/results.json"
}

record_scores() {
    local more=()
    if asks_for finetune; then more+=(--finetuning "$run_dir/finetune"); fi
    if [[ -e $out/paired.json ]]; then more+=(--paired "$out/paired.json"); fi
    run highrank record --scores "$out/scores.json" --config "$config" \
        --training "$run_dir/train" --output "$run_dir/results.json" ${more[@]+"${more[@]}"}
}
