"""No file that a command reads runs code, writes elsewhere, or takes more memory than it has.

What is refused is refused in words: no file leads to a traceback of Python.

    pytest --run-long -s tests/faults/test_hostile_files.py

tries every file in every command that reads its kind, and prints the counts.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch

from tests.faults import hostile_files
from tests.faults.hostile_checkpoints import hostile_checkpoints
from tests.faults.observing import CANARY, Observed, observe
from tests.trainings import COMMON, NARROW, OUR_LOSS, last, train

SLACK = 32 << 20  # bytes by which two runs of one command differ
# objects of Python are larger than what describes them; docs/reliability.md says how much
FACTORS = {"one line of 4,000,000 words": 100, "one line of 16 MB": 100}
FACTORS["pickle of nested lists"] = 60  # 2 for others
TEXT = Path(__file__).parents[1] / "text" / "tiny"
PAIR = ["--source-lang", "en", "--target-lang", "de"]
LONG = [pytest.mark.long, pytest.mark.timeout(5400)]
# some files of each kind; all, each in one command in turns; all, each in every command
EXTENT = [
    pytest.param(3, id="some"),
    pytest.param("turns", id="turns", marks=LONG),
    pytest.param("all", id="all", marks=LONG),
]
EVALUATE = ["--cpu", "--num-workers", 0, *PAIR]
VALIDATE = ["--task", "translation", "--batch-size", 4, *EVALUATE[:3]]
TRAIN = [*COMMON, *NARROW, *OUR_LOSS, *PAIR, "--arch", "transformer_mos_tiny", "--cpu", "--no-save"]

# command lines; {file} is what is hostile, {data} sound data, {model} a sound checkpoint
CHECKPOINT = {
    "generate": ["generate", "{data}", "--path", "{file}", *EVALUATE],
    "interactive": ["interactive", "{data}", "--path", "{file}", "--cpu", *PAIR],
    "validate": ["validate", "{data}", "--path", "{file}", *VALIDATE],
    "resume": ["train", "{data}", "--restore-file", "{file}", "--max-update", 3, *TRAIN],
    "finetune": ["train", "{data}", "--finetune-from-model", "{file}", "--max-update", 1, *TRAIN],
    "language model": [
        "generate", "{data}", "--path", "{model}", "--lm-path", "{file}", "--lm-weight", 1,
        *EVALUATE,
    ],
    "export": ["highrank", "model", "export", "{file}", "--data", "{data}", "--output", "out"],
    "card": ["highrank", "analyse", "card", "{file}", "--output", "card.html"],
    "spectrum": ["highrank", "measure", "spectrum", "{file}", "{data}", "--tokens", 20],
}  # fmt: skip
DATA = {
    "generate": ["generate", "{file}", "--path", "{model}", *EVALUATE],
    "validate": ["validate", "{file}", "--path", "{model}", "--valid-subset", "test", *VALIDATE],
    "train": ["train", "{file}", "--valid-subset", "test", "--max-update", 1, *TRAIN],
    "spectrum": ["highrank", "measure", "spectrum", "{model}", "{file}", "--tokens", 20],
}  # fmt: skip
DICTIONARY = DATA | {
    "interactive": ["interactive", "{file}", "--path", "{model}", "--cpu", *PAIR],
    "export": ["highrank", "model", "export", "{model}", "--data", "{file}", "--output", "out"],
    "preprocess": [
        "preprocess", "--only-source", "--srcdict", "{file}/dict.en.txt", "--trainpref",
        str(TEXT / "train.en"), "--destdir", "bin",
    ],
}  # fmt: skip
CORPUS = {
    "check-text": ["highrank", "data", "check-text", "{file}/train.en"],
    "pieces": [
        "highrank", "data", "pieces", "{file}", "out", "--languages", "en,de", "--vocab-size", 60,
        "--processes", 1,
    ],
    "binarise": [
        "highrank", "data", "binarise", "{file}", "out", "--languages", "en,de", "--processes", 1,
    ],
}  # fmt: skip
ARCHIVE = {
    "fetch": [
        "highrank", "data", "fetch", "{file}.yaml", "{file.parent}", "--offline", "--ledger",
        "ledger.txt", "--unpack", "out/new",
    ],
}  # fmt: skip
YAML = {
    "configure": ["highrank", "train", "configure", "{file}", "--output", "out.yaml"],
    "fetch": ["highrank", "data", "fetch", "{file}", "out", "--offline"],
    "clean-texts": ["highrank", *"data clean-texts {file} . out --languages en,de".split()],
    "study": ["highrank", "study", "{file}", "--dry-run"],
    "match": ["highrank", "match", "{file}", "--to", "{file}"],
}
EXPORTED = {"import": ["highrank", "model", "import", "{file}", "--output", "back.pt"]}


class Table:
    """Try files in commands, and collect what went wrong."""

    def __init__(self, folder: Path, data: Path, model: Path) -> None:
        self.folder, self.words = folder / "work", {"data": data, "model": model}
        self.canary = folder / CANARY
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.sound: dict[str, int] = {}

    def attempt(self, line: list, file: Path) -> Observed:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        words = [str(word).format(file=file, **self.words) for word in line]
        return observe(*words, folder=self.folder, stdin="a cat\n")

    def judge(
        self, kind: str, items: Iterable, extent: int | str, lines: dict, sound: Path,
        write: Callable[..., Path],
    ) -> None:  # fmt: skip
        """Try the chosen files in the chosen commands, whose memory a sound file measures."""
        files, commands = chosen(items, extent, lines)
        for command in {name: None for names in commands for name in names}:
            self.sound[command] = self.attempt(lines[command], sound).peak
        for number, (name, content) in enumerate(files):
            file = write(number, name, content)
            size = sum(path.stat().st_size for path in [file, *file.rglob("*")] if path.is_file())
            for command, line in commands[number].items():
                most = self.sound[command] + FACTORS.get(name, 2) * size + SLACK
                for text in self.faults(self.attempt(line, file), most):
                    self.wrong.append(f"{kind} {name!r}, {command}: {text}")
                    print(self.wrong[-1], flush=True)  # at once: the whole takes minutes
        print(f"\n{kind}: {len(files)} files, {dict(self.counts)}, wrong: {len(self.wrong)}")
        assert not self.wrong, "\n".join(self.wrong)

    def faults(self, seen: Observed, most: int) -> Iterator[str]:
        self.counts["refused" if seen.code else "accepted"] += 1
        yield from seen.effects
        if self.canary.exists():
            yield "ran code"
            self.canary.unlink()
        if seen.code < 0:
            yield f"was killed by signal {-seen.code}, or did not end"
        if "Traceback (most recent call last)" in seen.output:
            yield f"ended in a traceback: {seen.output.splitlines()[-1][:300]}"
        if seen.peak > most:
            yield f"took {seen.peak >> 20} MiB, more than {most >> 20}"


@pytest.fixture(scope="module")
def model(mt_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    train(mt_data, folder, "transformer_mos_tiny", 2)
    return last(folder)


@pytest.fixture
def table(tmp_path, mt_data, model):
    return Table(tmp_path, mt_data, model)


def chosen(items, extent: int | str, commands: dict) -> tuple[list, list[dict]]:
    items, names = list(items), list(commands)
    if extent == "all":
        return items, [commands] * len(items)
    if isinstance(extent, int):  # spread over all kinds
        items, names = items[:: -(-len(items) // extent)], names[:1]
    turns = [names[number % len(names)] for number in range(len(items))]
    return items, [{name: commands[name]} for name in turns]


def test_the_payloads_are_real(model, tmp_path):
    _, write = next(hostile_checkpoints(model, tmp_path / CANARY))
    write(tmp_path / "hostile.pt")
    assert not (tmp_path / CANARY).exists()
    torch.load(tmp_path / "hostile.pt", weights_only=False)
    assert (tmp_path / CANARY).exists()


# kind → its files, by the canary and a sound checkpoint, and the commands that read them
KINDS: dict[str, tuple[Callable, dict]] = {
    "binarised data": (hostile_files.binarised, DATA),
    "dictionary": (hostile_files.dictionaries, DICTIONARY),
    "corpus": (hostile_files.corpora, CORPUS),
    "exported folder": (hostile_files.exported, EXPORTED),
    "checkpoint": (hostile_checkpoints, CHECKPOINT),
    "archive": (hostile_files.archives, ARCHIVE),
    "YAML": (hostile_files.yamls, YAML),
}


@pytest.fixture
def sound(mt_data, model, tmp_path):
    """Return a function that gives the sound file or folder of a kind."""

    def sound(kind: str) -> Path:
        if kind == "corpus":
            return TEXT
        if kind == "exported folder":
            exported = tmp_path / "exported"
            words = ["model", "export", model, "--data", mt_data, "--output", exported]
            assert observe("highrank", *words, folder=tmp_path).code == 0
            return exported
        if kind == "archive":
            whole = shutil.make_archive(str(tmp_path / "sound"), "gztar", TEXT, "train.en")
            return write_corpus(Path(whole))
        base = Path(__file__).parents[2] / "recipes" / "ptb" / "conf" / "base.yaml"
        return {"checkpoint": model, "YAML": base}.get(kind, mt_data)

    return sound


def write_corpus(archive: Path) -> Path:
    """Write a corpus.yaml with one archive, whose checksum nobody has published."""
    known = {"url": "https://example.org", "sha256": "unknown", "source": "nobody"}
    corpus = json.dumps({"files": {archive.name: known}})
    archive.with_name(f"{archive.name}.yaml").write_text(corpus)
    return archive


@pytest.mark.parametrize("extent", EXTENT)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_do_no_harm(table, sound, model, tmp_path, kind, extent):
    make, commands = KINDS[kind]
    source = sound(kind)

    def write(number: int, name: str, content: Callable | str) -> Path:
        path = tmp_path / (name if kind == "archive" else f"{number}{source.suffix}")
        if source.is_dir():
            shutil.copytree(source, path)
        path.write_text(content) if isinstance(content, str) else content(path)
        return write_corpus(path) if kind == "archive" else path

    items = make(model, table.canary) if kind == "checkpoint" else make(table.canary)
    table.judge(kind, items, extent, commands, source, write)
