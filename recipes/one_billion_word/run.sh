#!/usr/bin/env bash
# Word-level language models of the One Billion Word benchmark (Chelba et al. 2013).
#
# Stages: 0 take the corpus (1.8 GB, 4 GB unpacked), 2 count the words and binarise the shards, 3
# train, a shard an epoch, 5 evaluate, 6 score, 7 show the papers' perplexities and ours. A finished
# stage is skipped unless its options or inputs have changed. The last line of standard output is
# the test perplexity.

# shellcheck source=../lib/language_modeling.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/language_modeling.sh"

data=               # folder with the unpacked corpus; empty: fetched, see corpus.yaml
conf=yang2018/mos   # what to train: conf/NAME.yaml
parse_options "$@"

# shards: print the shards for fairseq, which trains one per epoch, and then starts over.
shards() {
    local folders=("$data_bin"/shard*) IFS=:
    echo "${folders[*]}"
}

train() { train_block train "$(shards)"; }

open_language_model
find_corpus
run_stage 2 data-bin "count the words, binarise each shard" prepare_corpus "$(setting corpus)" \
    "$corpus"
language_model_stages
