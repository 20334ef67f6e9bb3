#!/usr/bin/env bash
# English-German user-interface strings, translated by people, from the wheel of Home Assistant.
#
# Stages: 0 fetch the wheel (67 MB) and take the strings, 1 check them and learn pieces, 2 binarise,
# 3 train, 4 average checkpoints, 5 translate, 6 score, 7 show samples and the score. A finished
# stage is skipped unless its options or inputs have changed. The last line of standard output is
# the score.

# shellcheck source=../lib/translation.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/translation.sh"

wheel=              # local copy of the wheel; empty: EXP_DIR/ui_strings_en_de/download, or PyPI
wheel_sha256=7ca5fbde9dea879ac7723949fc84347aac5182e6309c357b2e4973fd391b00f7   # of the wheel
conf=mixtape        # what to train: conf/NAME.yaml
parse_options "$@"

requirement=homeassistant==2026.11.0
wheel_name=homeassistant-2026.11.0-py3-none-any.whl

is_right() { echo "$wheel_sha256  $1" | sha256sum --check --status 2>/dev/null; }

# fetch FILE: download the wheel; FILE appears when it is complete.
fetch() {
    log "downloading $requirement (67 MB) from PyPI"
    run pip download --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
        --only-binary :all: --dest "$out/download" "$requirement" ||
        refuse "the download failed. Without network, run this on another machine:" \
            "pip download --no-deps --ignore-requires-python $requirement;" \
            "then put $wheel_name at $1, or name it with --wheel FILE"
    mkdir -p -- "$(dirname -- "$1")"
    mv -- "$out/download/$wheel_name" "$1"
    rmdir -- "$out/download"
}

take_strings() {
    local file
    if [[ -n $wheel ]]; then
        file=$wheel
    else
        file=$(dirname -- "$run_dir")/download/$wheel_name
        is_right "$file" || fetch "$file"
    fi
    is_right "$file" || refuse "$file is not the wheel that was tested: its sha256 is" \
        "$(sha256sum "$file" | cut -d ' ' -f 1) but should be $wheel_sha256; delete it, or give" \
        "--wheel-sha256 if you mean another"
    run python "$recipe_dir/extract.py" "$file" "$out" \
        --source "$source_language" --target "$target_language"
}

if [[ -n $wheel ]]; then
    [[ -f $wheel ]] || refuse "--wheel $wheel: no such file"
    wheel=$(absolute "$wheel")
fi
open_translation
run_stage 0 text "take the strings from the wheel" take_strings \
    "$wheel_sha256 $source_language $target_language" "$recipe_dir/extract.py"
translation_stages
