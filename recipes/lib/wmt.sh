# shellcheck shell=bash
# The stages of a translation recipe from published archives to a score. Stages 0 to 2 are shared by
# all runs that need the same text and pieces. The recipe has the files corpus.yaml and corpus_small.yaml.
# shellcheck source=../lib/translation.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/translation.sh"

# Options
data=               # folder with the archives or their text; empty: downloaded
scale=full          # full; small: 30,000 pairs and a model that a laptop trains
corpus=             # file that names the text; empty: corpus.yaml, or corpus_small.yaml for small
conf=               # what to train: conf/NAME.yaml, as small/mos; empty: yang2019/mixtape, or small/mixtape
against=            # another system's translations, one per line, for a paired test

shared_options=("${BASH_SOURCE[0]}" "${shared_options[@]}")

# wmt_recipe SOURCE TARGET [FLAG…]: run all stages, with further flags for `evaluate score`. The
# languages are those of the pairs in corpus.yaml.
wmt_recipe() {
    published=${recipe_dir##*/}         # of newstest2014
    choose_scale
    take_paths
    configure_flags=(--corpus "$corpus")
    choose_precision
    open_translation
    check_languages "$1" "$2"
    score_flags+=("${@:3}")
    if [[ -n $against ]]; then
        score_flags+=(--against "$against")
        score_inputs+=("$against")
    fi
    share_preparation
    prepare
    model_stages
}

choose_scale() {
    case $scale in
        full) corpus=${corpus:-$recipe_dir/corpus.yaml} conf=${conf:-yang2019/mixtape} ;;
        small) corpus=${corpus:-$recipe_dir/corpus_small.yaml} conf=${conf:-small/mixtape} ;;
        *) refuse "--scale '$scale': expected full or small" ;;
    esac
}

# choose_precision: train in half precision on GPUs, unless --set names a precision; a run that is there keeps its own.
choose_precision() {
    local kept=$exp_dir/${recipe_dir##*/}/${name:-$conf}/config.yaml
    if [[ " ${set[*]-}" =~ \ (train\.)?((memory_efficient_)?(fp|bf)16|amp|cpu)= || $launch == *--processes* ]]; then return; fi
    if [[ -e $kept ]]; then
        grep -qx ' *fp16: true' "$kept" || return 0
    elif [[ $launch != *--gpus-per-node* ]] && ! nvidia-smi --list-gpus 2>/dev/null | grep -q ^GPU; then
        return
    fi
    log "half precision (fp16), as on any GPU; --set fp16=false trains in float32"
    configure_flags+=(--set=fp16=true)
}

# take_paths: make options that are paths absolute.
take_paths() {
    if [[ -n $data ]]; then
        [[ -d $data ]] || refuse "--data $data: no such folder"
        data=$(absolute "$data")
    fi
    [[ -f $corpus ]] || refuse "--corpus $corpus: no such file"
    corpus=$(absolute "$corpus")
    if [[ -n $against ]]; then
        [[ -f $against ]] || refuse "--against $against: no such file"
        against=$(absolute "$against")
    fi
    exp_dir=$(absolute "${exp_dir:-$repository/exp}")
}

# check_languages SOURCE TARGET: refuse a configuration that reverses the corpus.
check_languages() {
    local block
    for block in train generate; do
        if [[ "$(setting "$block.source_lang") $(setting "$block.target_lang")" != "$1 $2" ]]; then
            abandon_run
            refuse "$block.source_lang and $block.target_lang of $config: this recipe's corpus," \
                "scores and published numbers are of $1 to $2; remove the change"
        fi
    done
}

# share_preparation: set $prepared, whose name has a hash of all that the data depends on.
share_preparation() {
    local key
    key=$(digest "$data $(setting clean) $(setting data)" "$corpus")
    prepared=$exp_dir/${recipe_dir##*/}/prepared-${key:0:8}
    prepared=${prepared#"$repository/"}
}

# prepare: stages 0 to 2, by one process at a time; others wait. Later stages compare their inputs.
prepare() {
    local run_dir=$prepared files=()
    if ((stage > 2)); then
        preparing_stages
        return
    fi
    refuse_links "$run_dir"
    make_log_folder
    log "text and binarised data: $run_dir"
    exec 8>>"$run_dir/.lock"
    chmod --quiet o-r -- "$run_dir/.lock" || true   # who cannot open it cannot hold it
    flock --nonblock 8 || { log "waiting for another run that prepares the same data" && flock 8; }
    preparing_stages
    exec 8>&-
}

preparing_stages() {
    find_corpus
    if in_range 1 || [[ $stage -gt 1 && -e $texts ]]; then find_texts; else files=("$texts"); fi
    run_stage 1 text "clean the text" clean_text "$(setting clean)" "$corpus" "${files[@]}"
    data_stages
}

# find_corpus: stage 0. $texts is --data if it has none of the archives that $corpus names, or else
# the unpacked archives.
find_corpus() {
    local folder=${data:-$exp_dir/${recipe_dir##*/}/download} archive given=()
    if [[ -n $data ]]; then
        for archive in ${archives[@]+"${archives[@]}"}; do
            if [[ -f $data/$archive ]]; then given+=("$data/$archive"); fi
        done
        if ((${#given[@]} == 0)); then
            texts=$data
            if in_range 0; then log "stage 0 corpus: no archive of $corpus is in $data, so it is taken as text"; fi
            return
        fi
    fi
    texts=$run_dir/corpus/files
    # a later --stage compares the archives of --data if all are there; the prepared folder may have
    # come from elsewhere
    ((stage == 0)) || [[ -n $data && ${#given[@]} == "${#archives[@]}" ]] || return 0
    run_stage 0 corpus "fetch, check and unpack the corpus" fetch_texts "$folder" "$corpus" \
        ${given[@]+"${given[@]}"}
}

fetch_texts() {
    local flags=() have=0 or="or get the archives in another way, and name their folder with"
    if [[ -n $data ]]; then
        flags=(--offline --ledger "$run_dir/checksums.txt") or="repair the archives in"
        have=$(bytes_of "${given[@]}")
    elif [[ -e $folder ]]; then
        have=$(bytes_of "$folder")
    fi
    need_space "$((gigabytes * 1000000000 - have))"
    run highrank data fetch "$corpus" "$folder" --unpack "$out/files" ${flags[@]+"${flags[@]}"} ||
        refuse "$or --data ${data:-DIR}${data:+, or choose the corpus that they are of: --corpus FILE}"
}

# find_texts: set $files to the corpus's files in $texts; --data may hold other files, too.
find_texts() {
    local found
    [[ -e $texts ]] || refuse "stage 1 (text) needs $texts: start with an earlier --stage"
    found=$(highrank data fetch "$corpus" "$texts" --texts)
    mapfile -t files <<<"$found"
}

clean_text() {
    # up to a third of the text may still be packed as .gz
    need_space "$(($(bytes_of "${files[@]}") * 2))"
    run_block "$run_dir/log/clean.sh" clean "$corpus" "$texts" "$out" \
        --languages "$source_language,$target_language"
}
