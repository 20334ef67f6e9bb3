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

data=               # folder with {train,valid,test}.LANGUAGE, or one text to split: DIR/NAME for NAME.LANGUAGE
source=             # language to translate from, the ending of its files (required)
target=             # language to translate to, the ending of its files (required)
conf=softmax        # what to train: conf/NAME.yaml
bleu_tokens=        # tokens of sacreBLEU, such as char for Japanese; empty: by the script
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
