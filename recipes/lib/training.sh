# shellcheck shell=bash
# Shared by recipes that train one configuration: the run with its configuration, the training run, the
# record. The recipes have an option conf.
# shellcheck source=../lib/recipe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/recipe.sh"

# Options
stage=0             # first stage
stop_stage=7        # last stage
name=               # results go to EXP_DIR/RECIPE/NAME; empty: the name of the configuration
exp_dir=            # empty: exp in the repository
launch=             # train through highrank launch with these options: --launch="--processes 2"
set=()              # override a value: KEY=VALUE (in block train) or BLOCK.KEY=VALUE; repeatable

shared_options=("${BASH_SOURCE[0]}" "${shared_options[@]}")

configure_flags=()                      # further flags of highrank train configure

# Set by settings.sh, which configure writes: blocks and values of the configuration, its measures
# (those of a text again by themselves), what a training run depends on, and the contents of
# corpus.yaml.
declare -A settings=()
# shellcheck disable=SC2034
measures=() text_measures=() training_key='' other_nodes='' dry_run='' archives=() gigabytes=0
published=''                            # task of published.yaml whose scores a summary has

# open_configured_run: open the run's directory, and check the configuration before anything runs.
# $commands gets settings.sh and the command of each block. With --dry-run in --launch, print the
# start of the training run, and do nothing.
# shellcheck disable=SC2154
open_configured_run() {
    local status
    if [[ -n $name ]]; then check_run_name --name "$name"; else check_run_name --conf "$conf"; fi
    exp_dir=$(absolute "${exp_dir:-$repository/exp}")   # open_run goes elsewhere
    open_run "$exp_dir/${recipe_dir##*/}/${name:-$conf}"
    config=$run_dir/config.yaml commands=$run_dir/commands
    earlier_config=$(cat -- "$config" 2>/dev/null || true)
    log "configuration $conf into $run_dir (fairseq checks a new one, which takes a few seconds)"
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

# setting KEY: print a block of the configuration as YAML, or the value of block.option.
setting() {
    [[ -n ${settings[$1]+set} ]] || refuse "$config: $1 is missing"
    printf '%s\n' "${settings[$1]}"
}

# asks_for BLOCK: whether the configuration has this optional step.
asks_for() { [[ -e $commands/$1.sh ]]; }

# write_command FILE BLOCK [WORD…]: write the command of a block with further words, for a shell,
# after the words of $through.
write_command() {
    [[ -e $commands/$2.sh ]] || refuse "$config: block $2 is missing"
    printf '%s%s \\\n    %s\n' "${through-}" "$(<"$commands/$2.sh")" "$(as_typed "${@:3}")" >"$1"
}

# run_block FILE BLOCK [WORD…]: print and run the command of a block, which stays in FILE.
run_block() {
    write_command "$@"
    log "+ $(<"$1")"
    bash "$1"
}

# train_block BLOCK DATA [WORD…]: fairseq-train with the options of a block into $out, where it
# continues from checkpoint_last.pt if there is one.
# train.log gets its output. With the recipe's option launch, or a block of that name, `highrank
# launch` starts it on several processes. After a submission to SLURM the exit code is 75 until the
# job has ended.
# shellcheck disable=SC2154
train_block() {
    local through='' finished=$out/logs/finished
    if asks_for launch; then
        if [[ -e $finished ]]; then
            log "already trained: $finished exists"
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
    # after a signal, bash waits for the training run, and ends with its exit code
    # shellcheck disable=SC2016
    bash -c 'trap : TERM USR1 HUP; source "$1"' bash "$out/command.sh" 2>&1 |
        (trap '' TERM USR1 HUP && exec tee --append -- "$out/train.log")
    if [[ -n $through && ! -e $finished ]]; then
        log "the training run has not ended yet; at its end it writes $finished"
        return 75
    fi
}

# measure CHECKPOINT DATA: compute the configured measures of the test set that $out lacks.
measure() { measure_blocks "$out" test "$@" ${measures[@]+"${measures[@]}"}; }

# measure_valid CHECKPOINT DATA: the same of the validation text, in $out/valid.
measure_valid() {
    mkdir -p -- "$out/valid"
    measure_blocks "$out/valid" valid "$@" ${text_measures[@]+"${text_measures[@]}"}
}

# measure_blocks FOLDER SPLIT CHECKPOINT DATA [BLOCK…]: the test set is the default of each command.
measure_blocks() {
    local block folder=$1 split=()
    if [[ $2 != test ]]; then split=(--split "$2"); fi
    for block in "${@:5}"; do
        if [[ ! -e $folder/$block.json ]]; then
            run_block "$folder/$block.sh" "$block" ${split[@]+"${split[@]}"} \
                --output "$folder/$block.json" "$3" "$4"
        fi
    done
}

# The score stage also writes results.json into the run's directory; it runs again if that is missing.
forget_score_without_record() {
    if [[ ! -e $run_dir/results.json ]]; then remove_output "$run_dir/score"; fi
}

# show_summary WHAT: stage 7.
show_summary() {
    local summary=$run_dir/score/summary.txt
    in_range 7 || return 0
    if [[ ! -e $summary ]]; then
        abandon_run
        refuse "stage 7 (summary) needs $summary: start with an earlier --stage"
    fi
    log "stage 7 summary: $1; everything is in $run_dir/results.json"
    cat -- "$summary"
}

# record_scores DATA SCORES [WORD…]: write the record with these scores of a model of this data, and
# its summary.
record_scores() {
    local more=(--data "$1" --summary "$out/summary.txt" ${published:+--published "$published"} "${@:3}")
    if asks_for finetune; then more+=(--finetuning "$run_dir/finetune"); fi
    if [[ -e $out/paired.json ]]; then more+=(--paired "$out/paired.json"); fi
    run highrank record --scores "$2" --config "$config" --training "$run_dir/train" \
        --output "$run_dir/results.json" ${more[@]+"${more[@]}"}
}
