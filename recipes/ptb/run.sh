#!/usr/bin/env bash
# Word-level language models of the Penn Treebank, in Mikolov's version, as the papers train them.
#
# Stages: 0 take the corpus, 1 check the words, 2 binarise, 3 train, 4 finetune, 5 evaluate (and
# dynamic evaluation or cache, where the configuration has them), 6 score, 7 show the papers'
# perplexities and ours. A finished stage is skipped unless its options or inputs have changed. The
# last line of standard output is the test perplexity.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"

stage=0             # first stage
stop_stage=7        # last stage
data=               # folder with [ptb.]{train,valid,test}.txt; empty: fetched, see corpus.yaml
scale=full          # small: conf/small/NAME.yaml, made for two cores
conf=               # what to train: conf/[small/]NAME.yaml; empty: yang2018/mos, or mos of small
name=               # results go to EXP_DIR/ptb/NAME; empty: the name of the configuration
word_pairs=         # folder with benchmarks of word similarity (*.txt: two words and a number per line)
exp_dir=            # empty: exp in the repository
splits=valid,test   # texts to score; train,valid,test adds the training perplexity
measured='test'     # texts of the measures (rank, divergence, …); valid,test adds the validation text
launch=             # train through highrank launch with these options: --launch="--gpus-per-node 4"
set=()              # override a value: KEY=VALUE (in block train) or BLOCK.KEY=VALUE; repeatable
parse_options "$@"

case $scale in
    full) conf=${conf:-yang2018/mos} ;;
    small) conf=${conf:-mos} conf=small/${conf#small/} ;;
    *) refuse "--scale '$scale': choose full or small" ;;
esac
open_language_model
text_stages
language_model_stages
