#!/usr/bin/env bash
# Word-level language models of the Penn Treebank, in Mikolov's version, as the papers train them.
#
# Stages: 0 take the corpus, 1 check the words, 2 binarise, 3 train, 4 finetune, 5 evaluate (and
# dynamic evaluation or cache, where the configuration has them), 6 score, 7 show the papers'
# perplexities and ours. A finished stage is skipped unless its options or inputs have changed. The
# last line of standard output is the test perplexity.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"

data=               # folder with [ptb.]{train,valid,test}.txt; empty: fetched, see corpus.yaml
scale=full          # small: conf/small/NAME.yaml, made for two cores
conf=               # what to train: conf/[small/]NAME.yaml; empty: yang2018/mos, or mos of small
word_pairs=         # folder with benchmarks of word similarity (*.txt: two words and a number per line)
parse_options "$@"

case $scale in
    full) conf=${conf:-yang2018/mos} ;;
    small) conf=${conf:-mos} conf=small/${conf#small/} ;;
    *) refuse "--scale '$scale': choose full or small" ;;
esac
open_language_model
text_stages
language_model_stages
