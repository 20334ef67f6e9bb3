"""No file that a command reads runs code, writes elsewhere, or takes more memory than it has.

What is refused is refused in words: no file leads to a traceback of Python.

    pytest --run-long -s tests/faults/test_hostile_files.py

tries every file in every command that reads its kind, and prints the counts.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import highrank_plugins
from highrank_plugins.common.user_error import UserError
from tests.faults import hostile_files
from tests.faults.hostile_checkpoints import hostile_checkpoints
from tests.faults.observing import CANARY, Observed, observe
from tests.trainings import COMMON, NARROW, OUR_LOSS, last, train

SLACK = 32 << 20  # bytes by which two runs of one command differ
# objects of Python are larger than what describes them; docs/reliability.md says how much
FACTORS = {"one line of 4,000,000 words": 100, "one line of 16 MB": 100}
FACTORS["pickle of nested lists"] = 60  # 2 for others
TEXT = Path(__file__).parents[1] / "text" / "tiny"
BASE = Path(__file__).parents[2] / "recipes" / "ptb" / "conf" / "base.yaml"
highrank_plugins.register()
LONG = [pytest.mark.long, pytest.mark.timeout(5400)]

# command lines; {file} is what is hostile, {data} sound data, {model} a sound checkpoint
PAIR = " --source-lang en --target-lang de"
EVALUATE = " --cpu --num-workers 0" + PAIR
VALIDATE = " --task translation --batch-size 4 --cpu --num-workers 0"
TRAIN = " ".join(["", *COMMON, *NARROW, *OUR_LOSS, "--arch transformer_mos_tiny --cpu --no-save"])
CHECKPOINT = {
    "generate": "generate {data} --path {file}" + EVALUATE,
    "interactive": "interactive {data} --path {file} --cpu" + PAIR,
    "validate": "validate {data} --path {file}" + VALIDATE,
    "resume": "train {data} --restore-file {file} --max-update 3" + TRAIN + PAIR,
    "finetune": "train {data} --finetune-from-model {file} --max-update 1" + TRAIN + PAIR,
    "language model": "generate {data} --path {model} --lm-path {file} --lm-weight 1" + EVALUATE,
    "export": "highrank model export {file} --data {data} --output out",
    "card": "highrank analyse card {file} --output card.html",
    "spectrum": "highrank measure spectrum {file} {data} --tokens 20",
}
DATA = {
    "generate": "generate {file} --path {model}" + EVALUATE,
    "validate": "validate {file} --path {model} --valid-subset test" + VALIDATE,
    "train": "train {file} --valid-subset test --max-update 1" + TRAIN + PAIR,
    "spectrum": "highrank measure spectrum {model} {file} --tokens 20",
}
DICTIONARY = DATA | {
    "interactive": "interactive {file} --path {model} --cpu" + PAIR,
    "export": "highrank model export {model} --data {file} --output out",
    "preprocess": "preprocess --only-source --srcdict {file}/dict.en.txt --trainpref {text} "
    "--destdir bin",
}
CORPUS = {
    "check-text": "highrank data check-text {file}/train.en",
    "pieces": "highrank data pieces {file} out --languages en,de --vocab-size 60 --processes 1",
    "binarise": "highrank data binarise {file} out --languages en,de --processes 1",
}
ARCHIVE = {
    "fetch": "highrank data fetch {file}.yaml {file.parent} --offline --ledger ledger.txt "
    "--unpack out/new"
}
YAML = {
    "configure": "highrank train configure {file} --output out.yaml",
    "fetch": "highrank data fetch {file} out --offline",
    "clean-texts": "highrank data clean-texts {file} . out --languages en,de",
    "study": "highrank study {file} --dry-run",
    "match": "highrank match {file} --to {file}",
}
EXPORTED = {"import": "highrank model import {file} --output back.pt"}
# kind → its files, by the canary and a sound checkpoint, and the commands that read them
KINDS: dict[str, tuple[Callable, dict[str, str]]] = {
    "binarised data": (hostile_files.binarised, DATA),
    "dictionary": (hostile_files.dictionaries, DICTIONARY),
    "corpus": (hostile_files.corpora, CORPUS),
    "exported folder": (hostile_files.exported, EXPORTED),
    "checkpoint": (hostile_checkpoints, CHECKPOINT),
    "archive": (hostile_files.archives, ARCHIVE),
    "YAML": (hostile_files.yamls, YAML),
}


@pytest.fixture(scope="module")
def model(mt_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    train(mt_data, folder, "transformer_mos_tiny", 2)
    return last(folder)


# first words of the name of a file → what is said of it
SAID = {
    "calls": "is refused: it names", "eval": "which fairseq could run as code",
    "resolves": "which omegaconf would resolve", "reads": "is a pipe or a device",
    "large:": r"but its weights are \d+ (bytes|tensors)", "sparse": "is a sparse tensor",
    "declares": "declares 4000000000000 bytes", "pipe": "is a pipe or a device",
    "half": "is truncated",
}  # fmt: skip


def test_hostile_checkpoints_are_refused_in_words(model, tmp_path):
    counts, path, canary = Counter(), tmp_path / "hostile.pt", tmp_path / CANARY
    for name, write in hostile_checkpoints(model, canary):
        kind = name.partition(" ")[0]
        if said := SAID.get(kind):
            write(path)
            with pytest.raises(UserError, match=rf"hostile\.pt.*{said}"):
                checkpoint_utils.load_model_ensemble_and_task([str(path)])
            path.unlink()
            assert not canary.exists(), name
        counts[kind] += 1
    assert counts.keys() > SAID.keys() and counts["calls"] > 15
    _, write = next(hostile_checkpoints(model, canary))
    write(path)
    torch.load(path, weights_only=False)
    assert canary.exists()  # the payloads are real


def sound_of(kind: str, words: dict[str, Path], folder: Path) -> Path:
    """Return the sound file or folder of a kind."""
    if kind == "exported folder":
        attempt(CHECKPOINT["export"], folder / "work", words | {"file": words["model"]})
        return (folder / "work" / "out").rename(folder / "exported")
    if kind == "archive":
        return listed(Path(shutil.make_archive(str(folder / "sound"), "gztar", TEXT, "train.en")))
    others = {"checkpoint": words["model"], "YAML": BASE, "corpus": TEXT}
    return others.get(kind, words["data"])


def listed(archive: Path) -> Path:
    """Write a corpus.yaml with one archive, whose checksum nobody has published."""
    known = {"url": "https://example.org", "sha256": "unknown", "source": "nobody"}
    corpus = json.dumps({"files": {archive.name: known}})
    archive.with_name(f"{archive.name}.yaml").write_text(corpus)
    return archive


def attempt(line: str, folder: Path, words: dict[str, Path]) -> Observed:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return observe(*(w.format(**words) for w in line.split()), folder=folder, stdin="a cat\n")


def faults(seen: Observed, most: int, canary: Path) -> Iterator[str]:
    yield from seen.effects
    if canary.exists():
        yield "ran code"
        canary.unlink()
    if seen.code < 0:
        yield f"was killed by signal {-seen.code}, or did not end"
    if "Traceback (most recent call last)" in seen.output:
        yield f"ended in a traceback: {seen.output.splitlines()[-1][:300]}"
    if seen.peak > most:
        yield f"took {seen.peak >> 20} MiB, more than {most >> 20}"


@pytest.mark.parametrize("extent", [
    "some", pytest.param("turns", id="turns", marks=LONG), pytest.param("all", id="all", marks=LONG)
])  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_do_no_harm(mt_data, model, tmp_path, kind, extent):
    """Try some files of each kind in a command; all, in turns; or each in every command."""
    make, commands = KINDS[kind]
    canary, words = tmp_path / CANARY, {"data": mt_data, "model": model, "text": TEXT / "train.en"}
    files = list(make(model, canary) if kind == "checkpoint" else make(canary))
    if extent == "some":  # spread over all kinds
        files, commands = files[:: -(-len(files) // 3)], dict([next(iter(commands.items()))])
    sound, work = sound_of(kind, words, tmp_path), tmp_path / "work"
    peaks = {
        name: attempt(line, work, words | {"file": sound}).peak for name, line in commands.items()
    }
    wrong, counts = [], Counter[str]()
    for number, (name, content) in enumerate(files):
        file = tmp_path / (name if kind == "archive" else f"{number}{sound.suffix}")
        if sound.is_dir():
            shutil.copytree(sound, file)
        file.write_text(content) if isinstance(content, str) else content(file)
        if kind == "archive":
            listed(file)
        size = sum(path.stat().st_size for path in [file, *file.rglob("*")] if path.is_file())
        for command in commands if extent == "all" else [list(commands)[number % len(commands)]]:
            seen = attempt(commands[command], work, words | {"file": file})
            counts["refused" if seen.code else "accepted"] += 1
            most = peaks[command] + FACTORS.get(name, 2) * size + SLACK
            found = [f"{kind} {name!r}, {command}: {text}" for text in faults(seen, most, canary)]
            wrong += found
            print(*found, sep="\n", end="", flush=True)  # at once: the whole takes minutes
    print(f"\n{kind}: {len(files)} files, {dict(counts)}, wrong: {len(wrong)}")
    assert not wrong, "\n".join(wrong)
