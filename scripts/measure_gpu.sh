#!/usr/bin/env bash
# Tests and times everything on a GPU, most valuable first; keeps what each part printed.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/measure_gpu.sh [--output DIR] [--part NAME]… [--minutes N] [--dry-run] [--rehearse]

Runs these parts in this order, and goes to the next one if a part fails:

  machine   versions and devices
  tests     pytest -m gpu
  wmt       losses at WMT's size, M = 32,768: softmax, MoS and Mixtape
  train     training steps of the big Transformer at the size of the paper's En-De
  wmt_128k  the losses with M = 131,072
  ptb       losses at Penn Treebank's size
  chunks    time and memory of MoS with K = 15 at WMT's size, by the size of a chunk
  tables    Markdown of all measurements, for docs/benchmarks.md

Each part prints to DIR/NAME.log, and writes its measurements to DIR/gpu_NAME.csv after every row.
The last lines name the parts that failed; the exit code is then 1. What is not installed
(liger_kernel, cut_cross_entropy) is left out.

  --output DIR   a new folder (default: exp/measure_gpu/DATE)
  --part NAME    run this part only; may be repeated
  --minutes N    end after N minutes (default: 25): a part that runs then is stopped
  --dry-run      print the commands
  --rehearse     small sizes on the CPU
TEXT
}

refuse() {
    echo "measure_gpu: $1" >&2
    exit 2
}

all_parts=(machine tests wmt train wmt_128k ptb chunks tables)
output=exp/measure_gpu/$(date +%Y-%m-%d_%H-%M-%S)
parts=() minutes=25 dry_run='' rehearse=''
while (($#)); do
    case $1 in
        --output | --part | --minutes) [[ -n ${2-} ]] || refuse "$1 needs a value; see --help" ;;&
        --output) output=$2 && shift ;;
        --part)
            [[ " ${all_parts[*]} " == *" $2 "* ]] ||
                refuse "--part '$2' does not exist; known: ${all_parts[*]}"
            parts+=("$2") && shift
            ;;
        --minutes)
            [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "--minutes '$2': expected a whole number above 0"
            minutes=$2 && shift
            ;;
        --dry-run) dry_run=yes ;;
        --rehearse) rehearse=yes ;;
        -h | --help) usage && exit 0 ;;
        *) refuse "unknown option '$1'; see --help" ;;
    esac
    shift
done
((${#parts[@]})) || parts=("${all_parts[@]}")
[[ ! -e $output || -n $dry_run ]] || refuse "--output '$output' exists; name a new folder"
output=$(realpath --canonicalize-missing -- "$output")

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
export PYTHONUNBUFFERED=1   # a part that is stopped has printed everything

where=(--device cuda --dtype bfloat16)
many=(--classes 131072) few=()
models=wmt_en_de
if [[ -n $rehearse ]]; then
    where=(--device cpu --repeats 1)
    many=(--tokens 8 --classes 40000)
    few=(--tokens 8)
    models=ui_strings_en_de
elif [[ -z $dry_run ]]; then
    python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' ||
        refuse "torch sees no GPU here; --dry-run prints the commands, --rehearse runs on the CPU"
fi
softmax=linear_cross_entropy,liger,cce
rivals=naive,compiled,gathered,gathered_compiled
impl=fused,triton,$softmax,$rivals
chunked=triton
if [[ -n $rehearse ]]; then impl=fused chunked=fused; fi

reserve=45   # seconds for the tables, which come last
deadline=$((SECONDS + 60 * minutes - reserve))
failed=()

# part NAME SECONDS COMMAND…: run one part, at most so long
part() {
    local name=$1 limit=$2 left=$((deadline - SECONDS)) code=0
    shift 2
    [[ " ${parts[*]} " == *" $name "* ]] || return 0
    echo "== $name: $*"
    if [[ -n $dry_run ]]; then return 0; fi
    if ((left < limit)); then limit=$left; fi
    if ((limit < 1)); then
        echo "measure_gpu: no time left for $name" >&2
        failed+=("$name (no time left)")
        return 0
    fi
    # to a file, so that all of it is kept
    timeout --kill-after=20 "$limit" "$@" >"$output/$name.log" 2>&1 || code=$?
    tail -n 60 "$output/$name.log"
    if ((code == 124)); then failed+=("$name (stopped after $limit s)"); fi
    if ((code != 0 && code != 124)); then failed+=("$name (exit code $code)"); fi
}

[[ -n $dry_run ]] || mkdir --parents -- "$output"
loss=(highrank bench loss --impl "$impl" "${where[@]}")
part machine 120 highrank doctor
part tests 480 python -m pytest -q -n 4 -m gpu tests
part wmt 600 "${loss[@]}" --preset wmt_en_de "${few[@]}" --csv "$output/gpu_wmt.csv"
part train 180 highrank bench train --preset "$models" "${where[@]}" --csv "$output/gpu_train.csv"
part wmt_128k 420 "${loss[@]}" --preset wmt_en_de "${many[@]}" --csv "$output/gpu_wmt_128k.csv"
part ptb 300 "${loss[@]}" --preset ptb "${few[@]}" --csv "$output/gpu_ptb.csv"
chunks=(--preset wmt_en_de/mos --components 15 --impl "$chunked" --memory "0,51,32")
part chunks 120 highrank bench loss "${where[@]}" "${chunks[@]}" "${few[@]}" \
    --csv "$output/gpu_chunks.csv"
((deadline += reserve))
part tables 120 highrank bench table "$output"/gpu_*.csv

if ((${#failed[@]})); then
    printf 'measure_gpu: failed: %s\n' "${failed[@]}" >&2
    echo "measure_gpu: the logs are in $output" >&2
    exit 1
fi
if [[ -z $dry_run ]]; then echo "measure_gpu: all parts succeeded; results are in $output"; fi
