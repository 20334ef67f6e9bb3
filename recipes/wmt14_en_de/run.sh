#!/usr/bin/env bash
# English-German of WMT14, from the archives to BLEU.
#
# Stages: 0 fetch and unpack the text, 1 clean it and learn pieces, 2 binarise, 3 train, 4 average
# checkpoints, 5 translate newstest2014, 6 score, 7 show the papers' scores, samples and the score.
# A finished stage is skipped unless its options or inputs have changed. The last line of standard
# output is the score.

# shellcheck source=../lib/wmt.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/wmt.sh"

parse_options "$@"

wmt_recipe en de --tokenise de --compound-split
