"""Requests that are refused in one line, with exit code 2, before anything is written."""

from pathlib import Path

import pytest

from highrank_plugins.cli import options
from highrank_plugins.studies.definition import RECIPES
from tests.cli import refused

CONFIGURE = f"train configure {RECIPES}/multi30k_en_de/conf/softmax.yaml --output resolved.yaml"
TRAIN = "-- fairseq-train data --arch transformer --save-dir save --max-tokens 100"
SCORE = "evaluate score generated reference --output scores.json --hypotheses test.de"
GERMAN = "compounds are split for German only (--tokenise de)"
REFUSED = [
    ("docter", "unknown command 'docter'; did you mean 'doctor'?"),
    (f"{CONFIGURE} --set user_dir=none", "train.user_dir: 'none' is not a folder in "),
    (f"{CONFIGURE} --set user_dir=data", "train.user_dir data: no __init__.py there; name the f"),
    ("doctor .", "no effect without --faults"),
    ("analyse card text --split valid", "--split and --tokens: change nothing without DATA; na"),
    ("model average train --output .", "--output . is a directory: name the file to write"),
    ("evaluate generate --output data -- fairseq-generate zz", "--output data is a directory: n"),
    ("evaluate generate --output text/a -- fairseq-generate zz", "text cannot be written; name"),
    ("model average train --output a --last 2 --best 2", "--last and --best exclude each other"),
    ("model average train --output train/checkpoint_last.pt",
     "--output train/checkpoint_last.pt is a file of the training run: name another"),
    ("data own-text text --sizes zz --order stream --overlap drop", "text is a stream to split"),
    ("evaluate score text reference", "text: "),
    (f"{SCORE} --output reference", "--output reference would replace another file of this comm"),
    (f"{SCORE} --hypotheses scores.json", "--hypotheses scores.json would replace another file"),
    (f"{SCORE} --tokenise fr --compound-split", GERMAN),
    ("compare a=1,2 a=3,4", "two systems have one name"),
    ("compare a=1,2 text", "a=1,2: give records or numbers, not both"),
    (f"launch --processes 2 --gpus-per-node 2 {TRAIN}", "exclude each other"),
    (f"launch --nodes 2 --processes 1 --dry-run {TRAIN}", "--rendezvous HOST:PORT"),
    (f"launch --processes 1 --slurm j --prologue wrong.sh {TRAIN}", "wrong.sh: line 2: syntax"),
    (f"launch --processes 1 --slurm text --prologue text {TRAIN}", "--slurm text would replace an"),
    (f"launch --processes 1 --slurm j --rendezvous a:1 {TRAIN}", "--rendezvous: SLURM tells"),
    (f"launch --nodes 4 --slurm job.sh {TRAIN}", "--gpus-per-node N (or --processes N on CPUs)"),
    (f"launch --processes 1 --slurm j --max-restarts 1 {TRAIN}", "--max-restarts: a SLURM job"),
    ("launch fairseq-train . --zz", "write -- before the command: highrank launch -- fairseq-t"),
]  # fmt: skip
# wrong paths and names, which the message repeats
WRONG = """\
data pieces zz out --languages en,de --vocab-size 100
evaluate generate --output out -- fairseq-generate zz --path zz.pt
evaluate score zz text
evaluate dynamic zz.pt zz --lr 0.1 --eps 0.1 --lambda 0.1
analyse card zz.pt zz
compare zz
record --config zz --scores zz --training zz --output out
model import zz --output out
train configure zz.yaml --output out
translate zz
new out --translation --source cs --target en --data zz
launch -- fairseq-train zz --arch transformer_mos
launch -- fairseq-train . --user-dir zz
"""
REFUSED += [(line, "zz") for line in WRONG.splitlines()]
REFUSED += [
    (f"data binarise text out --languages {text}", f"--languages {text}: expected SOURCE,TARGET")
    for text in ("en,", ",de", "en,de,fr", "de,de")
]


@pytest.fixture
def folder(tmp_path):
    files = {
        "text": "one\n", "list.json": "[]", "wrong.sh": "if\n", "reference": "a b\nc\n",
        "generated": "D-1\t-0.1\tc\nD-0\t-0.1\ta b\n",
        "train/checkpoint_last.pt": "kept",
    }  # fmt: skip
    for name in ("data", "empty", "train"):
        (tmp_path / name).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def content(folder):
    return {path: path.is_dir() or path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[w[-60:] for w, _ in REFUSED])
def test_a_refused_command_says_why_and_writes_nothing(words, message, folder):
    before = content(folder)
    refused(message, *words.split(), cwd=folder)
    assert content(folder) == before


@pytest.mark.parametrize("character", [*"\n\r\f\v\x1b\x85\u2028\udcff"])
@pytest.mark.parametrize(
    "words",
    [["--slurm", "{}.sh"], ["--slurm", "{}/j.sh"], ["--slurm", "j.sh", "--sbatch=--comment={}"],
     ["--slurm", "j.sh", "--sbatch=--{}=1"], ["--slurm", "j.sh", "--log-dir", "{}"]],
)  # fmt: skip
def test_no_control_character_is_written_into_a_batch_script(words, character, tmp_path):
    words = [word.format(f"x{character}touch PWNED #") for word in words]
    words = ["launch", "--processes", "1", *words, *TRAIN.split()]
    said = refused("a batch script cannot have", *words, cwd=tmp_path)
    assert said.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_output_may_be_a_device_where_no_file_can_be_made(monkeypatch, tmp_path):
    monkeypatch.setattr(options.os, "access", lambda *given: False)  # as for others than root
    for device in ("/dev/null", "/dev/stdout"):
        options.require_file(Path(device))
    with pytest.raises(ValueError, match="cannot be written; name another file"):
        options.require_file(tmp_path / "new" / "file")
