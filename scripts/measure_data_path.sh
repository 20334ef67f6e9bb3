#!/usr/bin/env bash
# Pairs per second and memory of the data path and of fairseq's own tools, on generated text.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/measure_data_path.sh [--ours] [PAIRS [PROCESSES]]

Generates PAIRS (200000) pairs of invented words with the lengths of news, then times
  ours   highrank data clean-texts, pieces (learning them apart), binarise, with PROCESSES (all cores)
  stock  the loop over lines of fairseq's spm_encode.py, both languages at once, then
         fairseq-preprocess --workers PROCESSES; the text is what ours has cleaned
after each other, and compares what they have written. Prints a line of JSON for each command: time,
pairs per second, memory of all its processes in MiB; then pairs per second and the ratio of both
paths without learning, whose pieces both use.

  --ours   leave out stock, which takes three times as long
TEXT
}

if [[ ${1-} == -h || ${1-} == --help ]]; then usage && exit 0; fi
paths=both
if [[ ${1-} == --ours ]]; then paths=ours && shift; fi
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp --directory)
trap 'rm -rf -- "$folder"' EXIT
python scripts/measure_data_path.py "$folder" "${1-200000}" "${2-$(nproc)}" "$paths"
