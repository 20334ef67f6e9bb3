#!/usr/bin/env bash
# English-French of WMT14, from the archives to BLEU.
#
# Stages: 0 fetch and unpack the text, 1 clean it and learn pieces, 2 binarise, 3 train, 4 average
# checkpoints, 5 translate newstest2014, 6 score, 7 show the papers' scores, samples and the score.
# A stage that is done is not done again unless its options or inputs have changed. The last line of
# standard output is the score.

# shellcheck source=../lib/wmt.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/wmt.sh"

stage=0             # first stage
stop_stage=7        # last stage
data=               # folder with the archives, or with what they hold; empty: fetched
scale=full          # full; small: 30,000 pairs and a model that a laptop trains
corpus=             # which text is where; empty: corpus.yaml, or corpus_small.yaml for small
conf=               # what to train: conf/NAME.yaml, as small/mos; empty: yang2019/mixtape, or small/mixtape
name=               # results go to EXP_DIR/wmt14_en_fr/NAME; empty: the name of the configuration
exp_dir=            # empty: exp in the repository
against=            # another system's translations, a line each, for a paired test
launch=             # train through highrank launch with these options: --launch="--gpus-per-node 8"
processes=1         # number of processes for translation
set=()              # KEY=VALUE over the configuration (train's; or block.key=value); repeatable
parse_options "$@"

wmt_recipe en fr --tokenise fr
