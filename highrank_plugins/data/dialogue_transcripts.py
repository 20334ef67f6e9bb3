"""Read dialogues in the layout of Zhao et al. 2017 (their Switchboard corpus), and check them.

*Learning Discourse-level Diversity for Neural Dialog Models using Conditional Variational
Autoencoders*: the corpus is a pickle of dictionaries, or a line of JSON per dialogue. The "utts" of
a dictionary are (speaker "A" or "B", text, features). Other keys and features are not read.
"""

import json
import pickle
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

PICKLE = "full_swda_clean_42da_sentiment_dialog_corpus.p"
SPLITS = ("train", "valid", "test")
_WORD = re.compile(r"\w+|[^\w\s]+")


class DialogueError(ValueError):
    """Report a corpus of dialogues that is incomplete or malformed, with the place."""


class Utterance(NamedTuple):
    """Hold what one of two people says. A noise has no words."""

    speaker: str
    words: list[str]


Dialogue = list[Utterance]


def words_of(text: str) -> list[str]:
    """Return runs of letters and digits, and of other characters, in lower case (Zhao et al.)."""
    return _WORD.findall(text.lower())


def corpus_files(folder: Path) -> list[Path]:
    """Return the pickle, or else the three files of JSON lines, in `folder` or its `json_data`."""
    if (folder / PICKLE).is_file():
        return [folder / PICKLE]
    for place in (folder, folder / "json_data"):
        files = [place / f"{split}.jsonl" for split in SPLITS]
        missing = [path for path in files if not path.is_file()]
        if not missing:
            return files
        if len(missing) < len(files):
            raise DialogueError(f"{missing[0]} is missing: every split is needed")
    raise DialogueError(
        f"{folder} has no corpus: put {PICKLE} there, or {', '.join(s + '.jsonl' for s in SPLITS)}"
    )


def read_corpus(folder: Path) -> dict[str, list[Dialogue]]:
    """Return the dialogues of each split; each has an utterance with words."""
    files = corpus_files(folder)
    if files[0].name == PICKLE:
        return _read_pickle(files[0])
    return {
        split: [_dialogue(raw, place) for place, raw in json_lines(path)]
        for split, path in zip(SPLITS, files, strict=True)
    }


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield `file:line` and the value of each line of JSON."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield f"{path}:{number}", parse_json(line, f"{path}:{number}")
    if number == 0:
        raise DialogueError(f"{path}: the file is empty")


def parse_json(text: bytes, place: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DialogueError(f"{place}: not JSON ({error}); copy the file again") from None


def _read_pickle(path: Path) -> dict[str, list[Dialogue]]:
    corpus = load_plain(path)
    if not isinstance(corpus, dict):
        raise DialogueError(f"{path}: holds a {type(corpus).__name__}, not a dictionary of splits")
    found = {}
    for split in SPLITS:
        dialogues = corpus.get(split)
        if not isinstance(dialogues, list) or not dialogues:
            raise DialogueError(f"{path}: the split {split!r} is missing or empty")
        found[split] = [_dialogue(raw, f"{path}: {split}[{i}]") for i, raw in enumerate(dialogues)]
    return found


def _dialogue(raw: Any, place: str) -> Dialogue:
    utterances = raw.get("utts") if isinstance(raw, dict) else None
    if not isinstance(utterances, list | tuple):
        raise DialogueError(f"{place}: a dialogue must be a dictionary with a list 'utts'")
    dialogue = [_utterance(raw, f"{place}: utts[{i}]") for i, raw in enumerate(utterances)]
    if not any(utterance.words for utterance in dialogue):
        raise DialogueError(f"{place}: a dialogue without utterances; remove it")
    return dialogue


def _utterance(raw: Any, place: str) -> Utterance:
    match raw:
        case ("A" | "B" as speaker, str() as text, *_):
            return Utterance(speaker, words_of(text))
    raise DialogueError(f"{place}: an utterance must be ('A' or 'B', text, …)")


# pickle opcodes that build only text, numbers, lists, tuples and dicts
_PLAIN = frozenset(
    """
    PROTO FRAME MARK STOP POP POP_MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1
    LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM
    SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    """.split()
)
_STORES = ("PUT", "BINPUT", "LONG_BINPUT")
# exceptions of the parsers for bytes that are not a pickle
_DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def load_plain(path: Path) -> Any:
    """Return the value of a pickle of text, numbers, None, lists, tuples and dicts only.

    Text of Python 2 is read as UTF-8. The file is checked before any value is built.
    """
    try:
        with path.open("rb") as file:
            _check(file, path.stat().st_size)
            file.seek(0)
            return _PlainUnpickler(file, encoding="utf-8").load()
    except (*_DAMAGED, MemoryError) as error:
        raise ValueError(
            f"{path} is refused: not a pickle of plain values ({error}). Copy it again, and use "
            "only files from a source that you trust"
        ) from None


def _check(file: BinaryIO, size: int) -> None:
    for opcode, argument, position in pickletools.genops(file):
        if opcode.name not in _PLAIN:
            what = f" {argument}" if argument is not None else ""
            raise ValueError(f"{opcode.name}{what} at byte {position}")
        if opcode.name in _STORES and not 0 <= int(argument or 0) < size:
            raise ValueError(f"value number {argument} at byte {position} of {size}")
