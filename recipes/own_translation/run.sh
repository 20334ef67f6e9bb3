#!/usr/bin/env bash
# A translator on text of your own, in any two languages, of a size that suits the text.
#
# Stages: 0 take the text (and split it), 1 check it and learn pieces, 2 binarise, 3 train, 4 average
# checkpoints, 5 translate, 6 score, 7 show samples and the score. A finished stage is skipped unless
# its options or inputs have changed. The last line of standard output is the score.

# shellcheck source=../lib/translation.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/translation.sh"
# shellcheck source=../lib/own_text.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/own_text.sh"

stage=0             # first stage
stop_stage=7        # last stage
data=               # folder with {train,valid,test}.LANGUAGE, or one text to split: DIR/NAME for NAME.LANGUAGE
source=             # language to translate from, the ending of its files (required)
target=             # language to translate to, the ending of its files (required)
conf=softmax        # what to train: conf/NAME.yaml
size=auto           # tiny, small or base (sizes.yaml); auto: by the lines and pieces of the text
overlap=refuse      # lines of valid and test that are in train: refuse them, drop or keep them in train
limit=              # read only the first N training lines
bleu_tokens=        # tokens of sacreBLEU, such as char for Japanese; empty: by the script
measured_updates=20 # updates that are timed before training, to say how long it takes; 0: none
name=               # results go to EXP_DIR/own_translation/NAME; empty: TEXT-SOURCE-TARGET/CONF
exp_dir=            # empty: exp in the repository
launch=             # train through highrank launch with these options: --launch="--processes 2"
processes=1         # number of processes for translation
set=()              # override a value: KEY=VALUE (in block train) or BLOCK.KEY=VALUE; repeatable
parse_options "$@"

[[ -n $source && -n $target ]] || refuse "--source and --target are required: the languages, such as cs and en"
sizes=sizes
read_own_text --source "$source" --target "$target" ${bleu_tokens:+--bleu-tokens "$bleu_tokens"}
configure_flags+=("--set=source_lang=${source//-/_}" "--set=target_lang=${target//-/_}")
open_translation
score_flags=(${bleu_tokens:+--bleu-tokens "$bleu_tokens"})
own_text_stage
data_stages
say_minutes "$prepared/data-bin"
model_stages
