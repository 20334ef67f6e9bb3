#!/usr/bin/env bash
# Word-level language models of WikiText-2 (Merity et al. 2017), as the papers train them.
#
# Stages: 0 take the corpus, 1 check the words, 2 binarise, 3 train, 4 finetune, 5 evaluate (and
# dynamic evaluation or cache, where the configuration has them), 6 score, 7 show the papers'
# perplexities and ours. A finished stage is skipped unless its options or inputs have changed. The
# last line of standard output is the test perplexity.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"

data=               # folder with wiki.{train,valid,test}.tokens; empty: fetched, see corpus.yaml
conf=yang2018/mos   # what to train: conf/NAME.yaml
word_pairs=         # folder with benchmarks of word similarity (*.txt: two words and a number per line)
parse_options "$@"

open_language_model
text_stages
language_model_stages
