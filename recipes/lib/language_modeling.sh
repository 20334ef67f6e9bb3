# shellcheck shell=bash
# The stages of a language-model recipe from a published corpus to perplexities. The recipe has a
# file corpus.yaml and an option data. It can have word_pairs.
# shellcheck source=../lib/training.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/training.sh"

# Options
splits=valid,test   # texts to score; train,valid,test adds the training perplexity
measured='test'     # texts of the measures (rank, divergence, …); valid,test adds the validation text

shared_options=("${BASH_SOURCE[0]}" "${shared_options[@]}")

# open_language_model: open the run's directory and configuration. A small scale has other words: its
# perplexity cannot be compared with published ones.
# shellcheck disable=SC2154
open_language_model() {
    if [[ ${scale-full} == full ]]; then published=${recipe_dir##*/}; fi
    if [[ -n $data ]]; then
        [[ -d $data ]] || refuse "--data $data: no such folder"
        data=$(absolute "$data")
    fi
    if [[ -n ${word_pairs-} ]]; then
        [[ $(find -L "$word_pairs" -maxdepth 1 -name '*.txt' 2>/dev/null) ]] || refuse "--word-pairs $word_pairs: no *.txt there"
        word_pairs=$(absolute "$word_pairs")
    fi
    open_scored_run
}

# open_scored_run: open it as open_configured_run does; refuse values of --splits and --measured that
# are unknown, or that would change nothing.
open_scored_run() {
    [[ ,$splits, == *,valid,* && ,$splits, == *,test,* && ,$splits, =~ ^,((train|valid|test),)+$ ]] ||
        refuse "--splits '$splits': expected valid,test or train,valid,test"
    [[ $measured == test || $measured == valid,test ]] ||
        refuse "--measured '$measured': expected test or valid,test"
    open_configured_run
    if [[ $measured == valid,* ]] && ((${#text_measures[@]} == 0)); then
        abandon_run
        refuse "--measured $measured: $conf measures no text; add a block such as \`spectrum: {}\` to it"
    fi
}

# find_corpus: stage 0. $corpus is --data, or else the archive of corpus.yaml, fetched once for all
# runs and unpacked.
# shellcheck disable=SC2154
find_corpus() {
    if [[ -n $data ]]; then
        corpus=$data
        if in_range 0; then log "stage 0 corpus: using $data"; fi
    else
        corpus=$run_dir/corpus/files
        run_stage 0 corpus "fetch the corpus" fetch_corpus "" "$recipe_dir/corpus.yaml"
    fi
}

fetch_corpus() {
    local download=${exp_dir:-$repository/exp}/${recipe_dir##*/}/download
    run highrank data fetch "$recipe_dir/corpus.yaml" "$download" --unpack "$out/files" ||
        refuse "or get the corpus in another way, and name its folder with --data DIR"
}

# prepare_corpus: writes the text, $out/{train,valid,test}.txt.
prepare_corpus() {
    run_block "$run_dir/log/lm-corpus.sh" corpus "${recipe_dir##*/}" --data "$corpus" \
        --output "$out"
}

# text_stages: 0 to 2, for a corpus of lines of words.
text_stages() {
    find_corpus
    run_stage 1 text "check and count the words" prepare_corpus "$(setting corpus)" "$corpus"
    run_stage 2 data-bin "binarise, the dictionary sorted by frequency" binarise \
        "" "$run_dir/text"
}

# language_model_stages: 3 to 7.
language_model_stages() {
    data_bin=$run_dir/data-bin
    run_resumable_stage 3 train "train (tensorboard --logdir $run_dir/train/tensorboard)" train \
        "$training_key" "$data_bin"
    trainings=("$run_dir/train")
    need_first_checkpoint
    if asks_for finetune; then
        run_resumable_stage 4 finetune "train on, averaging from the first update" finetune \
            "$(setting finetune)" "$data_bin" "$run_dir/train"
        trainings+=("$run_dir/finetune")
    elif in_range 4; then
        log "stage 4 finetune: $conf has no finetuning"
    fi
    run_resumable_stage 5 evaluate "perplexities of the best checkpoint" evaluate \
        "$(further_evaluations; for block in evaluate ${measures[@]+"${measures[@]}"}; do setting "$block"; done)" \
        "$data_bin" "${trainings[@]}" ${word_pairs:+"$word_pairs"}
    forget_score_without_record
    run_stage 6 score "collect the perplexities" collect_perplexities \
        "$(<"$config") $(perplexity_logs)" "$run_dir/evaluate"
    show_summary "perplexities"
}

# binarise: the text, or its pieces in the folder $words.
binarise() {
    local text=${words-$run_dir/text}
    run fairseq-preprocess --only-source --trainpref "$text/train.txt" \
        --validpref "$text/valid.txt" --testpref "$text/test.txt" --destdir "$out" \
        --padding-factor 1 --workers "$(nproc)"
    write_checksums "$out"
}

train() { train_block train "$data_bin"; }

finetune() {
    train_block finetune "$data_bin" --finetune-from-model "$run_dir/train/checkpoint_best.pt"
}

# need_first_checkpoint: finetuning starts from the best checkpoint of stage 3, and the record has the
# perplexities of both.
need_first_checkpoint() {
    local first=$run_dir/train/checkpoint_best.pt
    if asks_for finetune && [[ -e $run_dir/train/.done && ! -e $first ]] && ((stop_stage > 3)); then
        refuse "$first is missing: finetuning starts from it, and its perplexity is part of the" \
            "record. Restore it, or move $run_dir/train away and start with --stage 3"
    fi
}

# further_evaluations: print the options of stage 5 besides its blocks.
further_evaluations() {
    if [[ $splits == *train* ]]; then echo "$splits"; fi
    if [[ $measured != test ]]; then echo "measured: $measured"; fi
    if asks_for finetune; then echo "before finetuning"; fi
}

# evaluate: evaluate the best checkpoint, and of a finetuned run also the one before finetuning.
evaluate() {
    local best split
    best=$(highrank model best-checkpoint "${trainings[@]}")
    for split in ${splits//,/ }; do
        evaluate_split "$split" "$split" "$best"
        if ((${#trainings[@]} > 1)) && [[ $split != train ]]; then
            evaluate_split "before_finetuning_$split" "$split" "$run_dir/train/checkpoint_best.pt"
        fi
    done
    measure "$best" "$data_bin"
    if [[ $measured == valid,* ]]; then measure_valid "$best" "$data_bin"; fi
    if [[ -n ${word_pairs-} ]]; then
        local benchmarks=("$word_pairs"/*.txt)
        run highrank measure word-similarity "$best" "$data_bin" "${benchmarks[@]/#/--benchmark=}" \
            ${settings[train.user_dir]+"--user-dir=${settings[train.user_dir]}"} \
            --output "$out/word_similarity.json"
    fi
}

# evaluate_split NAME SPLIT CHECKPOINT: write the log of fairseq-eval-lm to $out/NAME.log.
evaluate_split() {
    local data=$data_bin
    [[ ! -e $out/$1.log ]] || return 0
    if [[ $2 == train && ! -e $data/train.bin ]]; then data=$data_bin/shard01; fi
    write_command "$out/$1.sh" evaluate "$data" --path "$3" --gen-subset "$2"
    log "+ $(<"$out/$1.sh")"
    bash "$out/$1.sh" 2>&1 | tee "$out/$1.part"
    mv -- "$out/$1.part" "$out/$1.log"
}

# perplexity_logs: print the logs that hold the perplexities, since a digest leaves logs out.
perplexity_logs() { cat -- "$run_dir"/evaluate/*{train,valid,test}.log 2>/dev/null || true; }

collect_perplexities() { record_scores "$data_bin" "$run_dir/evaluate"; }
