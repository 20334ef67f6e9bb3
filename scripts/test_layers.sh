#!/usr/bin/env bash
# Run the tests of layers, losses and huggingface/ with another Python, without fairseq.
#
#   bash scripts/test_layers.sh PYTHON [TEST …]     # such as python3.13
#
# Makes an environment in a temporary folder, from newest packages. On a machine without GPU, the CPU
# build of torch saves several GB: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
set -euo pipefail
(($#)) || { sed -n '2,7s/^# \?//p' "$0" >&2 && exit 2; }
python=$1
shift
(($#)) || set -- tests/heads tests/losses tests/huggingface
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet torch 'transformers>=5,<6' safetensors \
    numpy scipy hypothesis pytest pytest-timeout pytest-xdist
"$folder/bin/pip" install --quiet --no-deps .
cp -r tests pyproject.toml setup.py scripts requirements "$folder/"       # the installed package, not this folder's
cd -- "$folder"
"$folder/bin/python" -m pytest -q -n 2 "$@"
