#!/usr/bin/env bash
# Run the tests of huggingface/ with the lowest and the newest version of transformers.
#
#   bash scripts/test_huggingface.sh [VERSION …]      # default: 5.0.0 and the newest 5
#
# The python on PATH needs torch, pytest and, for all rows, trl, peft, accelerate, datasets and
# lm-eval. Each version is installed into a temporary folder.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
(($#)) || set -- 5.0.0 '5.*'
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
for version in "$@"; do
    # datasets hashes only what lies in a folder of this name
    packages="$folder/${version//\*/newest}/site-packages"
    python -m pip install --quiet --target "$packages" "transformers==$version"
    export PYTHONPATH="$packages:$PWD"
    python -c 'import transformers; print("transformers", transformers.__version__)'
    python -m pytest -q tests/huggingface tests/docs/test_huggingface.py || failed=1
done
exit "${failed:-0}"
