#!/usr/bin/env bash
# Layers that learn to copy a symbol, SpamLang of Godey and Artzi 2026: steps and retained gradient.
#
# Stages: 0 train each layer, width, vocabulary and seed of the grid, 1 write the table and the
# figure. A run that results.json holds is not repeated, also where the grid has grown. The last
# line of standard output is the path of the table.

# shellcheck source=../lib/recipe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/recipe.sh"

stage=0             # first stage
stop_stage=1        # last stage
conf=small          # what to train: conf/NAME.yaml
name=               # results go to EXP_DIR/synthetic/NAME; empty: the name of --conf
exp_dir=            # empty: exp in the repository
set=()              # override a value: KEY=VALUE; repeatable
parse_options "$@"

experiment=(python -m recipes.synthetic spamlang)

# spamlang [WORD…]: the command, with the configuration, the values of --set and further words.
spamlang() {
    run "${experiment[@]}" --conf "$recipe_dir/conf/$conf.yaml" \
        ${flags[@]+"${flags[@]}"} --output "$run_dir/results.json" "$@"
}

train_grid() { spamlang >/dev/null; }

write_table() {
    spamlang --table-only --plot "$run_dir/steps.svg" >"$run_dir/log/table.md"
    mv -- "$run_dir/log/table.md" "$run_dir/table.md"
    cat -- "$run_dir/table.md"
}

flags=()
for change in ${set[@]+"${set[@]}"}; do
    [[ $change == ?*=* ]] || refuse "--set '$change': write --set KEY=VALUE"
    key=${change%%=*}
    flags+=("--${key//_/-}=${change#*=}")
done
if [[ -n $name ]]; then check_run_name --name "$name"; else check_run_name --conf "$conf"; fi
exp_dir=$(absolute "${exp_dir:-$repository/exp}")   # open_run goes elsewhere
open_run "$exp_dir/synthetic/${name:-$conf}"
out=$run_dir
if in_range 0; then
    log "stage 0 runs: train the runs that $run_dir/results.json lacks"
    log_stage 0 runs train_grid
fi
if in_range 1; then
    if [[ ! -e $run_dir/results.json ]]; then
        abandon_run
        refuse "stage 1 (table) needs $run_dir/results.json: start with --stage 0"
    fi
    log "stage 1 table: write table.md and steps.svg"
    log_stage 1 table write_table
    echo "$run_dir/table.md"
fi
