# shellcheck shell=bash
# The stages of a translation recipe from parallel text to a score. The recipe provides the text in
# stage 0: $run_dir/text/{train,valid,test}.{$source_language,$target_language}.
# It has these options: stage, stop_stage, conf, name, exp_dir, set.
# shellcheck source=../lib/training.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/training.sh"

# open_translation: the run's directory and configuration.
open_translation() {
    open_configured_run
    source_language=$(setting train.source_lang)
    target_language=$(setting train.target_lang)
}

# translation_stages: 1 to 7.
translation_stages() {
    local text=$run_dir/text data=$run_dir/data-bin
    run_stage 1 pieces "check the text and split it into pieces" make_pieces \
        "$(setting data)" "$text"
    run_stage 2 data-bin "binarise, one dictionary sorted by frequency" binarise \
        "$source_language $target_language" "$run_dir/pieces"
    run_resumable_stage 3 train "train (tensorboard --logdir $run_dir/train/tensorboard)" train \
        "$(setting train)" "$data"
    run_stage 4 average "average the last checkpoints" average_last \
        "$(setting average)" "$run_dir/train"
    run_stage 5 generate "translate the test set" generate \
        "$(setting generate)" "$data" "$run_dir/average"
    forget_score_without_record
    run_stage 6 score "score the translations" score_translations \
        "$(<"$config")" "$text" "$run_dir/generate"
    if in_range 7; then show_results; fi
}

make_pieces() {
    local part
    for part in train valid test; do
        run highrank check-text "$run_dir/text/$part."{"$source_language","$target_language"}
    done
    run highrank pieces "$run_dir/text" "$out" --languages "$source_language,$target_language" \
        --vocab-size "$(setting data.vocab_size)" \
        --character-coverage "$(setting data.character_coverage)"
}

binarise() {
    local pieces=$run_dir/pieces
    run fairseq-preprocess --source-lang "$source_language" --target-lang "$target_language" \
        --trainpref "$pieces/train" --validpref "$pieces/valid" --testpref "$pieces/test" \
        --joined-dictionary --destdir "$out" --workers "$(nproc)"
}

train() { train_block train "$run_dir/data-bin"; }

average_last() {
    run highrank average "$run_dir/train" --last "$(setting average.last)" \
        --output "$out/checkpoint.pt"
}

generate() {
    highrank command generate "$config" -- "$run_dir/data-bin" --gen-subset test \
        --path "$run_dir/average/checkpoint.pt" >"$out/command.sh"
    log "+ $(<"$out/command.sh") >$out/test.txt"
    bash "$out/command.sh" >"$out/test.txt"
}

score_translations() {
    run highrank score "$run_dir/generate/test.txt" "$run_dir/text/test.$target_language" \
        --hypotheses "$out/test.$target_language" --output "$out/scores.json"
    record_scores
}

show_results() {
    log "stage 7 summary: sample translations; everything is in $run_dir/results.json"
    highrank summary "$run_dir/results.json" \
        "$run_dir/text/test.$source_language" "$run_dir/text/test.$target_language" \
        "$run_dir/score/test.$target_language"
}
