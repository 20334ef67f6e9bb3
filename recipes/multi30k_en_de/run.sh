#!/usr/bin/env bash
# English-German image captions (Multi30k, Elliott et al. 2016) from a folder of raw text.
#
# Stages: 0 take the text, 1 check it and learn pieces, 2 binarise, 3 train, 4 average checkpoints,
# 5 translate, 6 score, 7 show samples and the score. A finished stage is skipped unless its options
# or inputs have changed. The last line of standard output is the score.

# shellcheck source=../lib/translation.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/translation.sh"

data=               # folder with {train,valid,test2016}.{en,de}, or the same with .gz (required)
text=published      # any: accept another text than Multi30k's, or a part of it
conf=mixtape        # what to train: conf/NAME.yaml
parse_options "$@"
[[ $text == published || $text == any ]] || refuse "--text '$text': choose published or any"

find_text() {
    [[ -n $data ]] || refuse "--data DIR is required: a folder with the raw text of Multi30k," \
        "one sentence per line, {train,valid,test2016}.{en,de} or the same with .gz"
    [[ -d $data ]] || refuse "--data $data: no such folder"
    local part language file
    for part in train valid test2016; do
        for language in en de; do
            file=$(absolute "$data")/$part.$language
            [[ -f $file ]] || file+=.gz
            [[ -f $file ]] || ! in_range 0 ||       # a later stage does without
                refuse "neither ${file%.gz} nor $file exists: put the raw text of Multi30k there," \
                    "one sentence per line, or give another folder with --data"
            files+=("$file")
        done
    done
}

# check_text: check the given files, under their own names, before anything slow. files has a source
# file and its target file for each part.
check_text() {
    local index
    for ((index = 0; index < ${#files[@]}; index += 2)); do
        run highrank data check-text "${files[@]:index:2}" >&2
    done
}

# sum_of FILE: its sha256, where lines have no blanks at their ends, since some copies lack them.
sum_of() {
    gzip --decompress --stdout --force -- "$1" |
        LC_ALL=C awk '{ sub(/[[:space:]]+$/, ""); print }' | sha256sum | cut -d ' ' -f 1
}

# check_published: refuse a part of the text, or another test set, under the names of the text.
check_published() {
    local file part published
    for file in "${files[@]}"; do
        part=$(basename -- "${file%.gz}")
        published=$(awk -v part="$part" '$2 == part { print $1 }' "$recipe_dir/text.sha256")
        [[ $(sum_of "$file") == "$published" ]] ||
            refuse "$file is not $part of Multi30k as published, but a part or another text. Put" \
                "the published text there, or give --text any if you mean yours"
    done
}

take_text() {
    local file to
    need_space "$(($(bytes_of "${files[@]}") * 4))"     # packed files have about a third of the size
    for file in "${files[@]}"; do
        to=$(basename -- "${file%.gz}")
        # --force: files without .gz pass through
        run gzip --decompress --stdout --force -- "$file" >"$out/${to/#test2016/test}"
    done
}

files=()                        # a later --stage does without --data, and then compares nothing
if in_range 0 || [[ -n $data ]]; then find_text; fi
if in_range 0; then
    check_text
    [[ $text == any ]] || check_published
fi
open_translation
if ((${#files[@]} > 0)); then
    run_stage 0 text "take the text from $data" take_text "" "${files[@]}"
fi
translation_stages
