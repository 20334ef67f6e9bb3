# shellcheck shell=bash disable=SC2154
# Shared by recipes of the user's own text, which have an option data.

# Options
size=auto           # tiny, small or base (sizes*.yaml); auto: by the lines and tokens of the text
overlap=refuse      # lines of valid and test that are in train: refuse them, drop or keep them in train
limit=              # read only the first N training lines
measured_updates=20     # updates that are timed before training, to say how long it takes; 0: none
name=               # results go to EXP_DIR/RECIPE/NAME; empty: TEXT/CONF, or TEXT-SOURCE-TARGET/CONF

shared_options=("${BASH_SOURCE[0]}" "${shared_options[@]}")

# read_own_text [FLAG…]: check the text before anything is written; set own_text_flags, and add the
# options of its size to configure_flags, below those of --set.
read_own_text() {
    local settings line given kept=()
    [[ $overlap =~ ^(refuse|drop|keep)$ ]] || refuse "--overlap '$overlap': choose refuse, drop or keep"
    [[ -z $limit || $limit =~ ^[1-9][0-9]*$ ]] || refuse "--limit '$limit': expected a number of lines"
    [[ $measured_updates =~ ^[0-9]+$ ]] ||
        refuse "--measured-updates '$measured_updates': expected a number, or 0 for none"
    if [[ -z $data && -d $recipe_dir/text ]]; then data=$recipe_dir/text; fi     # of highrank new
    [[ -n $data ]] || refuse "--data is required: your text (see --help)"
    data=$(realpath --canonicalize-missing --no-symlinks -- "$data")
    own_text_flags=("$@" --sizes "$recipe_dir/$sizes.yaml" --size "$size" --overlap "$overlap"
        ${limit:+--limit "$limit"})
    settings=$(highrank data own-text "$data" "${own_text_flags[@]}") || exit 2
    while read -r line; do
        for given in ${set[@]+"${set[@]}"}; do
            if [[ ${given#train.} == "${line%%=*}"=* ]]; then continue 2; fi
        done
        if [[ -z $source && $line == data.vocab_size=* ]]; then
            pieces=${line#*=}           # a language model has no block data
        else
            configure_flags+=("--set=$line")
        fi
    done <<<"$settings"
    for given in ${set[@]+"${set[@]}"}; do
        if [[ -n $source || $given != data.vocab_size=* ]]; then
            kept+=("$given")
            continue
        fi
        pieces=${given#*=}
        [[ $units == pieces ]] || refuse "--set $given: words are not split; add --units pieces"
        [[ $pieces =~ ^[1-9][0-9]*$ ]] || refuse "--set $given: expected a number of pieces"
    done
    set=(${kept[@]+"${kept[@]}"})
    name=${name:-$(basename -- "${data%.txt}")${source:+-$source-$target}/$conf}
}

# take_own_text: stage 0, the text as train, valid and test.
take_own_text() {
    local files
    mapfile -t files < <(files_of_text)
    need_space "$(($(bytes_of "${files[@]}") * 4))"
    run highrank data own-text "$data" "${own_text_flags[@]}" --output "$out" >"$out/.settings"
    mv -- "$out/.settings" "$out/settings.txt"
}

# files_of_text: print the files that the text is in. Folders beside them, such as exp, do not count.
files_of_text() {
    local file start=$data.
    if [[ -f $data ]]; then
        echo "$data"
        return
    fi
    if [[ -d $data ]]; then start=$data/; fi
    for file in "$start"*; do
        if [[ -f $file ]]; then echo "$file"; fi
    done
}

# own_text_stage: stage 0.
own_text_stage() {
    local files
    mapfile -t files < <(files_of_text)
    run_stage 0 text "take the text from $data" take_own_text "${own_text_flags[*]}" "${files[@]}" \
        "$recipe_dir/$sizes.yaml"
}

# split_own_text: into the pieces of a language model.
split_own_text() { run highrank data pieces "$run_dir/text" "$out" --languages txt --vocab-size "$pieces"; }

# say_minutes DATA: time some updates of the training run, and say how long it will take. Nothing of
# them is kept.
say_minutes() {
    if ! in_range 3 || ((measured_updates == 0)) || [[ -e $run_dir/train/metrics.jsonl ]]; then return; fi
    if asks_for launch; then
        log "no updates are timed: --launch trains on other processes than one of this machine"
        return
    fi
    scratch=$(mktemp -d)
    write_command "$scratch/command.sh" train "$1" --save-dir "$scratch/train" --log-format json \
        --no-save --disable-validation --log-interval 1 --max-update "$((measured_updates + 2))"
    log "measuring $measured_updates updates"
    run_watched time_updates
    if [[ -n $stop_signal ]]; then
        rm -rf -- "$scratch"
        end_stopped "measuring was stopped by SIG$stop_signal"
    elif ((stage_status != 0)); then
        cat -- "$scratch/log" >&2
        rm -rf -- "$scratch"
        log "error: the measured updates failed with exit code $stage_status; their output is above"
        exit "$stage_status"
    fi
    log "training takes about $(numbers_of ups | sort -g | awk -v most="${settings[train.max_update]-0}" \
        -v epochs="${settings[train.max_epoch]-0}" -v each="$(numbers_of updates_per_epoch)" '
        { speeds[NR] = $1 }
        END {
            updates = epochs * each
            if (!updates || most && most < updates) updates = most
            printf "%.0f minutes on this machine: %d", updates / speeds[int((NR + 1) / 2)] / 60, updates
        }') updates, at the speed of $measured_updates; then it translates or scores"
    rm -rf -- "$scratch"
}

# after a signal, bash waits for the training run
# shellcheck disable=SC2016
time_updates() { bash -c 'trap : TERM HUP; source "$1"' bash "$scratch/command.sh" >"$scratch/log" 2>&1; }

# numbers_of NAME: print the numbers of that name from the measured updates, without the first two.
numbers_of() {
    sed -n "3,\$!{/updates_per_epoch/!d}; s/.*\"$1\": \([0-9.]*\).*/\1/p" "$scratch/train/metrics.jsonl"
}
