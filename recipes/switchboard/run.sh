#!/usr/bin/env bash
# Responses in telephone conversations (Switchboard, as prepared by Zhao et al. 2017), with an LSTM.
#
# Stages: 0 write contexts and responses of the corpus, 1 check them, 2 binarise, 3 train, 4 take
# the best checkpoint, 5 respond to the test contexts, 6 score, 7 show the papers' scores, samples
# and the scores. A finished stage is skipped unless its options or inputs have changed. The last
# line of standard output is the perplexity of the test responses.

# shellcheck source=../lib/training.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/training.sh"

data=               # folder with the corpus, see the recipe's README.md (required)
context=9           # utterances before a response, of which the model sees the words
conf=mos            # what to train: conf/NAME.yaml
parse_options "$@"

# find_corpus: set files to those of the corpus, or refuse if some are missing.
find_corpus() {
    [[ -n $data ]] || refuse "--data DIR is required: a folder with the corpus of Zhao et al." \
        "2017, see $recipe_dir/README.md"
    local list
    data=$(absolute "$data")
    list=$(python "$recipe_dir/dialogue.py" "$data")
    mapfile -t files <<<"$list"
}

write_text() {
    run python "$recipe_dir/dialogue.py" "$data" "$out" --context "$context"
}

check_text() {
    local part text=$run_dir/text
    for part in train valid test; do
        run highrank data check-text "$text/$part."{context,response}
    done
    run highrank data check-text "$text/test1."{context,response,references}
}

# test1: fairseq's name of the second test set, here the contexts with references.
binarise() {
    local text=$run_dir/text classes
    classes=$(setting corpus.vocab_size)
    run fairseq-preprocess --source-lang context --target-lang response \
        --trainpref "$text/train" --validpref "$text/valid" \
        --testpref "$text/test,$text/test1" --nwordssrc "$classes" --nwordstgt "$classes" \
        --padding-factor 1 --destdir "$out" --workers "$(nproc)"
    write_checksums "$out"
}

train() { train_block train "$run_dir/data-bin"; }

take_best() {
    local checkpoint
    checkpoint=$(highrank model best-checkpoint "$run_dir/train")
    run cp -- "$checkpoint" "$out/checkpoint.pt"
}

# generate SET [WORD…]: write fairseq-generate's output for a test set to $out/SET.txt.
generate() {
    run_block "$out/$1.sh" generate "$run_dir/data-bin" --gen-subset "$1" \
        --path "$run_dir/best/checkpoint.pt" "${@:2}" >"$out/$1.txt"
}

respond() {
    generate test --score-reference
    generate test1
}

score_responses() {
    run python "$recipe_dir/score.py" "$run_dir/generate/test1.txt" \
        "$run_dir/text/test1.references" \
        --scored "$run_dir/generate/test.txt" --responses "$run_dir/text/test.response" \
        --output "$out/scores.json"
    record_scores "$run_dir/data-bin" "$out/scores.json" \
        --generated "$run_dir/generate/test.txt" --generated "$run_dir/generate/test1.txt"
}

files=()                        # a later --stage does without --data, and then compares nothing
if in_range 0 || [[ -n $data ]]; then find_corpus; fi
published=switchboard
open_configured_run
if ((${#files[@]} > 0)); then
    run_stage 0 text "write contexts and responses of the corpus in $data" write_text \
        "$context" "${files[@]}"
fi
run_stage 1 check "check every line" check_text "" "$run_dir/text"
run_stage 2 data-bin "binarise, dictionaries sorted by frequency" binarise \
    "$(setting corpus)" "$run_dir/text"
run_resumable_stage 3 train "train (tensorboard --logdir $run_dir/train/tensorboard)" train \
    "$training_key" "$run_dir/data-bin"
run_stage 4 best "take the checkpoint with the lowest validation loss" take_best \
    "" "$run_dir/train"
run_stage 5 generate "score the test responses, and respond" respond \
    "$(setting generate)" "$run_dir/data-bin" "$run_dir/best"
forget_score_without_record
run_stage 6 score "score the responses" score_responses \
    "$(<"$config")" "$run_dir/text" "$run_dir/generate"
show_summary "scores of responses"
