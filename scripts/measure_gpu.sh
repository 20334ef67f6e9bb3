#!/usr/bin/env bash
# Checks, times and trains on a GPU, most valuable first; keeps what each part printed.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash scripts/measure_gpu.sh [--output DIR] [--part NAME]… [--minutes N] [--data DIR] [--dry-run]
                                   [--rehearse]
       bash scripts/measure_gpu.sh --fetch DIR [--python 3.12]
       bash scripts/measure_gpu.sh --install DIR

The first line runs these parts in this order, and goes to the next one if a part fails:

  machine    versions and devices
  kernels    values and gradients of all kernels, beside torch's: no time counts before they are right
  wmt        losses at WMT's size, M = 32,768: softmax, MoS and Mixtape
  ptb        losses at Penn Treebank's size
  train      training steps of the big Transformer at the size of the paper's En-De
  train_ptb  training steps at Penn Treebank's size; then each with the batch that fits into 12 GiB
  curves     first epochs of softmax, MoS and Mixtape as Yang et al. train them (needs --data)
  tests      pytest -m gpu
  wmt_128k   the losses with M = 131,072
  chunks     time and memory of MoS with K = 15 at WMT's size, by the size of a chunk
  tables     Markdown of all measurements, for docs/benchmarks.md

Each part prints to DIR/NAME.log, and writes its measurements to DIR/gpu_NAME.csv after every row.
The last lines name the parts that failed; the exit code is then 1. What is not installed
(liger_kernel, cut_cross_entropy) is left out.

  --output DIR   a new folder (default: exp/measure_gpu/DATE); with --part, an older one may be taken
  --part NAME    run this part only; may be repeated
  --minutes N    end after N minutes (default: 60): a part that runs then is stopped
  --data DIR     the Penn Treebank of Mikolov: [ptb.]{train,valid,test}.txt, 5 MB
  --dry-run      print the commands
  --rehearse     small sizes on the CPU

A borrowed machine often has torch and triton, but no network and no environment of ours. Fetch here what
it lacks, carry the clone with DIR to it, install there, and run part after part:

  --fetch DIR    download the packages that a machine with torch, numpy and scipy lacks
  --python V     for this version of Python (default: 3.12)
  --install DIR  install them and this clone, without a network
TEXT
}

refuse() {
    echo "measure_gpu: $1" >&2
    exit 2
}

# names of requirements/pinned.txt; what they need else comes with torch
lacking="ve-fairseq omegaconf hydra-core antlr4-python3-runtime pydantic pydantic_core annotated-types
    typing-inspection tensorboardX bitarray cffi pycparser typer annotated-doc shellingham rich
    markdown-it-py mdurl Pygments click tqdm regex joblib sacrebleu sentencepiece sacremoses
    subword-nmt nltk portalocker colorama tabulate lxml scikit-learn threadpoolctl narwhals cloudpickle"
rivals_there="liger-kernel cut-cross-entropy"   # compared where they run

fetch() {
    local folder=$1 version=$2 pins=() name pin
    for name in $lacking; do
        pin=$(grep --ignore-case --max-count 1 "^$name==" requirements/pinned.txt) ||
            refuse "--fetch: requirements/pinned.txt has no $name"
        pins+=("${pin%% *}")
    done
    mkdir --parents -- "$folder"
    # shellcheck disable=SC2086
    for pin in "${pins[@]}" $rivals_there; do
        python -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" \
            --platform any --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
            --platform manylinux_2_28_x86_64 --dest "$folder" "$pin" 2>/dev/null ||
            python -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$pin" 2>/dev/null ||  # has no wheel
            refuse "--fetch: $pin cannot be downloaded for Python $version; name another --python"
    done
    du --summarize --human-readable -- "$folder"
}

install() {
    python -m pip install --quiet --no-index --no-deps "$1"/*.whl
    python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
    highrank doctor
}

all_parts=(machine kernels wmt ptb train train_ptb curves tests wmt_128k chunks tables)
output=exp/measure_gpu/$(date +%Y-%m-%d_%H-%M-%S)
parts=() minutes=60 dry_run='' rehearse='' data='' wheels='' how='' python_version=3.12
while (($#)); do
    case $1 in
        --output | --part | --minutes | --data | --fetch | --install | --python)
            [[ -n ${2-} ]] || refuse "$1 needs a value; see --help" ;;&
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
        --data)
            [[ -d $2 ]] || refuse "--data '$2': no such folder"
            data=$(realpath -- "$2") && shift
            ;;
        --fetch | --install) how=${1#--} wheels=$(realpath --canonicalize-missing -- "$2") && shift ;;
        --python)
            [[ $2 =~ ^3\.[0-9]+$ ]] || refuse "--python '$2': expected a version such as 3.12"
            python_version=$2 && shift
            ;;
        --dry-run) dry_run=yes ;;
        --rehearse) rehearse=yes ;;
        -h | --help) usage && exit 0 ;;
        *) refuse "unknown option '$1'; see --help" ;;
    esac
    shift
done
[[ ! -e $output || -n $dry_run || ${#parts[@]} -gt 0 ]] || refuse "--output '$output' exists; name a new folder"
[[ ! -e $output || -d $output ]] || refuse "--output '$output' is not a folder; name another path"
((${#parts[@]})) || parts=("${all_parts[@]}")
output=$(realpath --canonicalize-missing -- "$output")

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"   # where there is none, the machine's own Python
export PYTHONUNBUFFERED=1   # a part that is stopped has printed everything
if [[ -n $how ]]; then
    [[ $how == fetch ]] || compgen -G "$wheels/*.whl" >/dev/null || refuse "--install '$wheels': no wheels there; run --fetch first"
    "$how" "$wheels" "$python_version"
    exit
fi

where=(--device cuda --dtype bfloat16)
many=(--classes 131072) few=()
models=wmt_en_de language=ptb within=(--within 12288) epochs=(--set max_epoch=3) scale=full
if [[ -n $rehearse ]]; then
    where=(--device cpu --repeats 1)
    many=(--tokens 8 --classes 40000)
    few=(--tokens 8)
    models=ui_strings_en_de language=ui_strings_en_de
    within=(--within 60 --model "transformer_mixtape --head-frequent-ratio 0.1")   # each try takes 5 s
    epochs=(--set max_update=2 --set max_epoch=1) scale=small
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

# part NAME SECONDS COMMAND…: run one part, at most so long; a part of several commands has one log
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
    timeout --kill-after=20 "$limit" "$@" >>"$output/$name.log" 2>&1 || code=$?
    tail -n 60 "$output/$name.log"
    if ((code == 124)); then failed+=("$name (stopped after $limit s)"); fi
    if ((code != 0 && code != 124)); then failed+=("$name (exit code $code)"); fi
}

[[ -n $dry_run ]] || mkdir --parents -- "$output"
loss=(highrank bench loss --impl "$impl" "${where[@]}")
step=(highrank bench train "${where[@]}")
part machine 120 highrank doctor
part kernels 300 highrank doctor --kernels
part wmt 420 "${loss[@]}" --preset wmt_en_de "${few[@]}" --csv "$output/gpu_wmt.csv"
part ptb 300 "${loss[@]}" --preset ptb "${few[@]}" --csv "$output/gpu_ptb.csv"
part train 180 "${step[@]}" --preset "$models" --csv "$output/gpu_train.csv"
part train_ptb 200 "${step[@]}" --preset "$language" --csv "$output/gpu_train_ptb.csv"
part train_ptb 200 "${step[@]}" --preset "$language" "${within[@]}" --csv "$output/gpu_train_12g.csv"
# The same command resumes a stopped run. The small Mixtape needs a rate of 10 and a warm-up.
for curve in yang2018/softmax_mos_settings yang2018/mos yang2019/mixtape \
    "yang2019/mixtape --set lr=10 --set warmup_updates=1000"; do
    [[ -n $data || -n $dry_run ]] || break
    read -ra words <<<"$curve"
    if [[ $scale == small ]]; then words[0]=${words[0]##*/} words[0]=${words[0]/softmax_mos_settings/softmax}; fi
    name=gpu_$(tr -c '[:alnum:]\n' _ <<<"$curve")
    part curves 540 bash recipes/ptb/run.sh --scale "$scale" --conf "${words[@]}" "${epochs[@]}" \
        --data "$data" --stop-stage 3 --exp-dir "$output" --name "$name"
done
part tests 480 python -m pytest -q -n 4 -m gpu tests
part wmt_128k 420 "${loss[@]}" --preset wmt_en_de "${many[@]}" --csv "$output/gpu_wmt_128k.csv"
chunks=(--preset wmt_en_de/mos --components 15 --impl "$chunked" --memory "0,51,32")
part chunks 120 highrank bench loss "${where[@]}" "${chunks[@]}" "${few[@]}" \
    --csv "$output/gpu_chunks.csv"
((deadline += reserve))
part tables 120 highrank bench table "$output"/gpu_*.csv

if [[ -z $data && -z $dry_run && " ${parts[*]} " == *" curves "* ]]; then
    failed+=("curves (give --data)")
fi
if ((${#failed[@]})); then
    printf 'measure_gpu: failed: %s\n' "${failed[@]}" >&2
    echo "measure_gpu: the logs are in $output" >&2
    exit 1
fi
if [[ -z $dry_run ]]; then echo "measure_gpu: all parts succeeded; results are in $output"; fi
