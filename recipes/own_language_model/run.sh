#!/usr/bin/env bash
# A language model on text of your own, of words or pieces, of a size that suits the text.
#
# Stages: 0 take the text (and split it), 1 split it into pieces, 2 binarise, 3 train, 5 evaluate,
# 6 score, 7 show the perplexity and that of a unigram model. A finished stage is skipped unless its
# options or inputs have changed. The last line of standard output is the test perplexity.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"
# shellcheck source=../lib/own_text.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/own_text.sh"

data=embedded       # folder with {train,valid,test}.txt, or a file to split; embedded: documentation of the packages in .venv
conf=awd_lstm/softmax   # what to train: conf/NAME.yaml, of the trunks awd_lstm and transformer
units=words         # words (rare ones become <unk> in all parts) or pieces
order=stream        # stream: each line follows the one before; lines: they are separate (transformer)
parse_options "$@"

[[ $units == words || $units == pieces ]] || refuse "--units '$units': choose words or pieces"
[[ $order == stream || $order == lines ]] || refuse "--order '$order': choose stream or lines"
if [[ $order == lines ]]; then
    [[ $conf != awd_lstm/* ]] || refuse "--order lines: an AWD-LSTM reads a stream; choose --conf transformer/..."
    configure_flags=(--set=sample_break_mode=eos --set=evaluate.sample_break_mode=eos
        --set=evaluate.context_window=0)
fi
sizes=sizes_${conf%%/*} source=
[[ -e $recipe_dir/$sizes.yaml ]] ||
    refuse "--conf $conf: expected TRUNK/LAYER with the trunk awd_lstm or transformer, such as awd_lstm/${conf##*/}"
if [[ $data == embedded && -d $recipe_dir/text ]]; then
    data=$recipe_dir/text               # of highrank new
elif [[ $data == embedded ]]; then      # documentation of the packages that setup installs
    data=$(absolute "${exp_dir:-$repository/exp}")/own_language_model/download/documentation.txt
    mkdir -p -- "$(dirname -- "$data")"
    [[ -e $data ]] || run python "$recipe_dir/documentation.py" "$data"
fi
read_own_text --units "$units" --order "$order"
open_scored_run
own_text_stage
words=$run_dir/text
if [[ $units == pieces ]]; then
    run_stage 1 pieces "split the text into pieces" split_own_text "$pieces" "$words"
    words=$run_dir/pieces
fi
run_stage 2 data-bin "binarise, the dictionary sorted by frequency" binarise "" "$words"
say_minutes "$run_dir/data-bin"
language_model_stages
