# shellcheck shell=bash
# What recipes share that train one configuration: the run with its configuration, the training, the
# record. They have these options: stage, stop_stage, conf, name, exp_dir, set.
# shellcheck source=../lib/recipe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/recipe.sh"

configure_flags=()                      # more for highrank train configure

# What settings.sh sets, which configure writes: blocks and values of the configuration, the measures
# that are asked for, what a training depends on, and what a corpus.yaml says.
declare -A settings=()
# shellcheck disable=SC2034
measures=() training_key='' other_nodes='' dry_run='' archives=() gigabytes=0

# open_configured_run: the run's directory, and its configuration, checked before anything is done:
# $commands has the command of each block, and settings.sh. With --dry-run among the words of the
# option launch, the start of the training is printed, and nothing is done.
# shellcheck disable=SC2154
open_configured_run() {
    local status
    if [[ -n $name ]]; then check_run_name --name "$name"; else check_run_name --conf "$conf"; fi
    exp_dir=$(absolute "${exp_dir:-$repository/exp}")   # open_run goes elsewhere
    open_run "$exp_dir/${recipe_dir##*/}/${name:-$conf}"
    config=$run_dir/config.yaml commands=$run_dir/commands
    log "configuration $conf into $run_dir (a new one is checked by fairseq: some seconds)"
    run highrank train configure "$recipe_dir/conf/$conf.yaml" --output "$config" \
        --commands "$commands" ${launch:+"--launch=$launch"} \
        ${configure_flags[@]+"${configure_flags[@]}"} ${set[@]+"${set[@]/#/--set=}"} || {
        status=$?
        abandon_run
        exit "$status"
    }
    # shellcheck source=/dev/null
    source "$commands/settings.sh"
    if [[ -n $dry_run ]]; then
        log "nothing was done: --launch has --dry-run"
        abandon_run
        exit 0
    fi
}

# setting KEY: a block of the configuration as YAML, or the value of block.option.
setting() {
    [[ -n ${settings[$1]+set} ]] || refuse "$config: there is no $1"
    printf '%s\n' "${settings[$1]}"
}

# asks_for BLOCK: does the configuration have this optional step?
asks_for() { [[ -e $commands/$1.sh ]]; }

# write_command FILE BLOCK [WORD…]: the command of a block with further words, for a shell. If
# $through is set, that runs it.
write_command() {
    local words
    [[ -e $commands/$2.sh ]] || refuse "$config: there is no $2"
    printf -v words ' %q' "${@:3}"
    printf '%s%s \\\n   %s\n' "${through-}" "$(<"$commands/$2.sh")" "$words" >"$1"
}

# run_block FILE BLOCK [WORD…]: print and run the command of a block, which stays in FILE.
run_block() {
    write_command "$@"
    log "+ $(<"$1")"
    bash "$1"
}

# train_block BLOCK DATA [WORD…]: fairseq-train with the options of a block into $out, where it
# continues from checkpoint_last.pt if there is one; the disk must have space for checkpoints.
# All that it says goes to train.log. With the recipe's option launch, or a block of that name,
# `highrank launch` starts it on several processes; if that has given it to SLURM, the exit code is
# 75 until the job has come to its end.
# shellcheck disable=SC2154
train_block() {
    local through='' finished=$out/logs/finished
    if asks_for launch; then
        if [[ -e $finished ]]; then
            log "trained before: $finished"
            return
        fi
        printf -v through '%s \\\n    --log-dir %q -- \\\n    ' "$(<"$commands/launch.sh")" "$out/logs"
    fi
    write_command "$out/command.sh" "$1" "$2" --save-dir "$out" \
        --tensorboard-logdir "$out/tensorboard" --log-format json "${@:3}"
    log "+ $(<"$out/command.sh")"
    if [[ -n $other_nodes ]]; then
        log "now, on every other node: cd ${PWD@Q} && PATH=\$PWD/.venv/bin:\$PATH bash ${out@Q}/command.sh"
    fi
    highrank train run "$out/command.sh" --config "$config" --block "$1" --data "$2" \
        --save-dir "$out"
    if [[ -n $through && ! -e $finished ]]; then
        log "the training has not ended here; when it has, there is $finished"
        return 75
    fi
}

# measure CHECKPOINT DATA: the measures of the test set that are asked for and not done, into $out.
# shellcheck disable=SC2154
measure() {
    local block
    for block in ${measures[@]+"${measures[@]}"}; do
        if [[ ! -e $out/$block.json ]]; then
            run_block "$out/$block.sh" "$block" --output "$out/$block.json" "$1" "$2"
        fi
    done
}

# The score stage writes the record beside the run's other results, too: it is done again if somebody
# has removed that.
forget_score_without_record() {
    if [[ ! -e $run_dir/results.json ]]; then remove_output "$run_dir/score"; fi
}

# show_published: the papers' scores of the recipe's task next to this run's.
show_published() {
    highrank results published "${recipe_dir##*/}" --results "$run_dir/results.json"
}

# record_scores DATA SCORES [WORD…]: write the record with these scores of a model of this data.
record_scores() {
    local more=(--data "$1" "${@:3}")
    if asks_for finetune; then more+=(--finetuning "$run_dir/finetune"); fi
    if [[ -e $out/paired.json ]]; then more+=(--paired "$out/paired.json"); fi
    run highrank results record --scores "$2" --config "$config" --training "$run_dir/train" \
        --output "$run_dir/results.json" ${more[@]+"${more[@]}"}
}
