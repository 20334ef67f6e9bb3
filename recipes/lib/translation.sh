# shellcheck shell=bash
# The stages of a translation recipe from parallel text to a score. The recipe provides the text in
# stage 0: $prepared/text/{train,valid,test}.{$source_language,$target_language}.
# shellcheck source=../lib/training.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/training.sh"

# Options
processes=1         # number of processes for translation

shared_options=("${BASH_SOURCE[0]}" "${shared_options[@]}")

# open_translation: open the run's directory and configuration. Text and binarised data are in
# $prepared, the same directory unless the recipe shares them between runs.
open_translation() {
    [[ $processes =~ ^[1-9][0-9]*$ ]] || refuse "--processes '$processes': expected a number"
    open_configured_run
    prepared=$run_dir
    source_language=$(setting train.source_lang)
    target_language=$(setting train.target_lang)
    score_flags=() score_inputs=()      # further flags of `evaluate score`, and files they name
}

# translation_stages: 1 to 7.
translation_stages() {
    data_stages
    model_stages
}

# data_stages: 1 and 2.
data_stages() {
    run_stage 1 pieces "check the text and split it into pieces" make_pieces \
        "$(setting data)" "$run_dir/text"
    run_stage 2 data-bin "binarise, one dictionary sorted by frequency" binarise \
        "$source_language $target_language" "$run_dir/pieces"
}

# model_stages: 3 to 7.
model_stages() {
    local text=$prepared/text data=$prepared/data-bin
    run_resumable_stage 3 train "train (tensorboard --logdir $run_dir/train/tensorboard)" train \
        "$training_key" "$data"
    run_stage 4 average "average the last checkpoints" average_last \
        "$(setting average)" "$run_dir/train"
    run_stage 5 generate "translate the test set" generate \
        "$(setting generate)" "$data" "$run_dir/average"
    forget_score_without_record
    run_stage 6 score "score the translations, measure the model if configured" \
        score_translations \
        "$(<"$config") ${score_flags[*]}" "$text" "$run_dir/generate" \
        ${score_inputs[@]+"${score_inputs[@]}"}
    show_summary "sample translations${published:+; published scores are of newstest2014}"
}

make_pieces() {
    local part text=$run_dir/text
    need_space "$(($(bytes_of "$text") * 2))"
    for part in train valid test; do
        run highrank data check-text "$text/$part."{"$source_language","$target_language"}
    done
    run_block "$run_dir/log/pieces.sh" data "$text" "$out" \
        --languages "$source_language,$target_language"
}

binarise() {
    need_space "$(bytes_of "$run_dir/pieces")"
    run highrank data binarise "$run_dir/pieces" "$out" \
        --languages "$source_language,$target_language"
}

train() { train_block train "$prepared/data-bin"; }

average_last() {
    need_space "$(bytes_of "$run_dir/train/checkpoint_last.pt")"
    run highrank model average "$run_dir/train" --last "$(setting average.last)" \
        --output "$out/checkpoint.pt"
}

generate() {
    local through=
    need_space "$(($(bytes_of "$prepared/text/test.$source_language") * 20))"
    if ((processes > 1)); then
        through="highrank evaluate generate --processes $processes -- "
    fi
    run_block "$out/command.sh" generate "$prepared/data-bin" --gen-subset test \
        --path "$run_dir/average/checkpoint.pt" >"$out/test.txt"
}

score_translations() {
    need_space "$(($(bytes_of "$run_dir/generate") * 2))"
    measure "$run_dir/average/checkpoint.pt" "$prepared/data-bin"
    run highrank evaluate score "$run_dir/generate/test.txt" \
        "$prepared/text/test.$target_language" \
        --hypotheses "$out/test.$target_language" --output "$out/scores.json" --measures "$out" \
        ${score_flags[@]+"${score_flags[@]}"}
    record_scores "$prepared/data-bin" "$out/scores.json" \
        --generated "$run_dir/generate/test.txt" \
        --samples "$prepared/text/test.$source_language" \
        --samples "$prepared/text/test.$target_language" --samples "$out/test.$target_language"
}
