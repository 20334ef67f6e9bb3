#!/usr/bin/env bash
# Character-level language models of text8 (100 million characters of Wikipedia).
#
# Stages: 0 take the corpus (31 MB), 2 binarise the characters, 3 train, 5 evaluate, 6 score, 7 show
# the papers' results and ours: test_bits are the bits per character (BPC). A finished stage is
# skipped unless its options or inputs have changed. The last line of standard output is the test
# perplexity, per character.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"

data=               # folder with the file text8; empty: fetched, see corpus.yaml
conf=yang2018/mos7  # what to train: conf/NAME.yaml
parse_options "$@"

open_language_model
find_corpus
run_stage 2 data-bin "binarise the characters" prepare_corpus "$(setting corpus)" "$corpus"
language_model_stages
