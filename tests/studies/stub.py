"""Make a recipe of a few lines of bash that takes a moment, and resumes as real ones do."""

import json
import subprocess
import sys
from pathlib import Path

import yaml
from click.testing import Result

from tests.cli import highrank

STUB = r"""#!/usr/bin/env bash
# Stages that are done stay done; what comes out depends on configuration and seed alone.
set -euo pipefail
conf= name= exp_dir= seed=0 lr=1 pause=0.02 failing=
while (($#)); do
    case $1 in
        --conf) conf=$2; shift 2 ;;
        --name) name=$2; shift 2 ;;
        --exp-dir) exp_dir=$2; shift 2 ;;
        --pause=*) pause=${1#*=}; shift ;;
        --failing=*) failing=${1#*=}; shift ;;
        --set=seed=*) seed=${1##*=}; shift ;;
        --set=lr=*) lr=${1##*=}; shift ;;
        *) shift ;;
    esac
done
out=$exp_dir/stub/$name
mkdir -p "$out/train"
exec 9>>"$out/.lock"
flock --wait 5 9 || exit 2
echo "start $conf $seed" >>"$out/starts"
for stage in 1 2 3; do
    [[ -e $out/$stage ]] && continue
    sleep "$pause"
    echo "$conf $seed $stage" >"$out/$stage.part"
    mv "$out/$stage.part" "$out/$stage"
done
head -c 1000 /dev/zero >"$out/train/checkpoint_last.pt"
echo "the log of $conf" >"$out/train/train.log"
if [[ $failing == "$conf-$seed" ]]; then echo "FloatingPointError: loss is NaN"; exit 1; fi
if [[ $failing == "$conf-$seed-refused" ]]; then echo "highrank: no such arch"; exit 2; fi
if [[ $failing == "$conf-$seed-code" ]]; then echo "out of luck"; exit 3; fi
if [[ $failing == "$conf-$seed-lr$lr" ]]; then echo "FloatingPointError: loss is NaN"; exit 1; fi
# the best learning rates: softmax 0.3, mos 1, mixtape 3
loss=$(awk -v lr="$lr" -v conf="$conf" 'BEGIN {
    best["softmax"] = 0.3; best["mos"] = 1; best["mixtape"] = 3; off = log(lr / best[conf])
    print 5 + off * off}')
value=$((${#conf} * 10 + seed * seed)).$(printf %02d $((seed * 7 % 100)))
[[ $failing == "$conf-$seed-nan" ]] && value=NaN
cat >"$out/results.json.part" <<RECORD
{"metrics": {"test_perplexity": $value, "valid_perplexity": $value}, "signature": "a",
 "signatures": {"test_perplexity": "a"}, "seeds": [$seed],
 "config": {"corpus": {}, "average": {"last": 1},
  "train": {"arch": "awd_lstm_lm_$conf", "lr": $lr, "seed": $seed, "max_epoch": 36}},
 "train": {"updates": 10, "best_valid_loss": $loss,
   "wall_seconds": $RANDOM, "words_per_second": $RANDOM},
 "hardware": {"cores": 1, "gpus": []}, "versions": {"torch": "2"}, "git": null}
RECORD
mv "$out/results.json.part" "$out/results.json"
"""
HIGHRANK = [sys.executable, "-m", "highrank_plugins.cli"]


def write_stub(folder: Path, **changes: object) -> Path:
    """Write a recipe with three configurations, and a study of it; return the study's file."""
    recipe = folder / "stub"
    (recipe / "conf").mkdir(parents=True)
    (recipe / "run.sh").write_text(STUB)
    for name in ("softmax", "mos", "mixtape"):
        text = {"corpus": {}, "train": {"arch": f"awd_lstm_lm_{name}", "lr": 1, "max_epoch": 36}}
        (recipe / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(text))
    members = {name: {"conf": name} for name in ("softmax", "mos", "mixtape")}
    return write_study(folder, {"members": members, **changes})


def write_study(folder: Path, tree: dict[str, object], name: str = "layers") -> Path:
    file = folder / f"{name}.yaml"
    tree = json.loads(json.dumps({"recipe": "stub", **tree}))  # files take no aliases
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return file


def study_command(file: Path, *words: object) -> list[str]:
    """Return the command line of a study, with runs in its file's folder."""
    return [*HIGHRANK, "study", str(file), "--exp-dir", str(file.parent / "exp"), *map(str, words)]


def run_study(file: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(study_command(file, *words), capture_output=True, text=True)


def study(file: Path, *words: object) -> Result:
    return highrank("study", file, "--exp-dir", file.parent / "exp", *words)


def folder_of(file: Path) -> Path:
    """Return the folder of a study's table, logs and links."""
    return file.parent / "exp" / "stub" / "studies" / file.stem


def table_of(file: Path) -> bytes:
    folder = folder_of(file)
    return (folder / "table.md").read_bytes() + (folder / "table.csv").read_bytes()


def tables(file: Path, *words: object, code: int = 0, **changes: object) -> str:
    """Change a study, run it, and return its tables."""
    done = changed(file, *words, **changes)
    assert done.exit_code == code, done.output
    return table_of(file).decode()


def refusal(file: Path, *words: object, **changes: object) -> str:
    """Change a study, run it, and return why it is refused."""
    done = changed(file, *words, **changes)
    assert done.exit_code == 2, done.output
    return done.output


def changed(file: Path, *words: object, **changes: object) -> Result:
    """Change a study, and run it; None removes a key."""
    if changes:
        tree = yaml.safe_load(file.read_text()) | changes
        kept = {name: value for name, value in tree.items() if value is not None}
        write_study(file.parent, kept, file.stem)
    return study(file, *words)


def compared(file: Path, links: str = "*-*") -> str:
    """Return what `highrank compare` says of records that a study links to."""
    found = folder_of(file).glob(f"{links}/results.json")
    return highrank("compare", *sorted(found), "--metric=test_perplexity", "--all-tests").output


def starts(file):
    """Return how often the recipe was started in each folder of a member."""
    found = (file.parent / "exp" / "stub" / "members").glob("*/starts")
    return {path.parent.name: len(path.read_text().splitlines()) for path in found}
