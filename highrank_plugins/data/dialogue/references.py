"""Several good responses to one context, as Zhao et al. 2017 collected them for their test set."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from highrank_plugins.data.dialogue.transcripts import (
    Dialogue,
    DialogueError,
    Utterance,
    parse_json,
    words_of,
)

FILE = "test_multi_ref.json"
# "0-A: hello": whatever stands before the speaker, the colon, the text
_UTTERANCE = re.compile(r"[^:]*([AB])\s*:(.*)", re.DOTALL)
# of the beginning of a dialogue, and around sentences
_MARKS = re.compile(r"</?s>|<d>")


class ReferredContext(NamedTuple):
    """What was said, who answers, and good answers: at least one, each of at least one word."""

    context: Dialogue
    speaker: str
    references: list[list[str]]


def read_references(path: Path) -> list[ReferredContext]:
    """Contexts and their references in a JSON list of {"context", "speaker", "responses"}.

    Contexts without words, which are beginnings of dialogues, are left out.

    Raises:
        DialogueError: no JSON, an entry of another form or without responses; names it.
    """
    entries = parse_json(path.read_bytes(), str(path))
    if not isinstance(entries, list) or not entries:
        raise DialogueError(f"{path}: must hold a list of contexts with their responses")
    found = [_entry(entry, f"{path}: [{index}]") for index, entry in enumerate(entries)]
    return [entry for entry in found if entry.context]


def _entry(raw: Any, place: str) -> ReferredContext:
    match raw:
        case {"context": list() as context, "speaker": "A" | "B" as speaker,
              "responses": list() as responses}:  # fmt: skip
            utterances = [_utterance(text, f"{place}: context") for text in context]
            references = [_words(text, f"{place}: responses") for text in responses]
        case _:
            raise DialogueError(
                f"{place}: must have a list 'context', 'speaker' A or B and a list 'responses'"
            )
    if not any(references):
        raise DialogueError(f"{place}: no response has words")
    said = [utterance for utterance in utterances if utterance.words]
    return ReferredContext(said, speaker, [words for words in references if words])


def _utterance(raw: Any, place: str) -> Utterance:
    match = _UTTERANCE.fullmatch(raw) if isinstance(raw, str) else None
    if not match:
        raise DialogueError(f"{place}: {raw!r} must be text with its speaker, as in '0-A: hello'")
    return Utterance(match[1], _words(match[2], place))


def _words(raw: Any, place: str) -> list[str]:
    if not isinstance(raw, str):
        raise DialogueError(f"{place}: {raw!r} must be text")
    return words_of(_MARKS.sub(" ", raw))
