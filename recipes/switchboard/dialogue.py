"""Write dialogues as parallel text: lines of contexts, and lines of responses to them.

The layout is that of Zhao et al. 2017 (*Learning Discourse-level Diversity for Neural Dialog Models
using Conditional Variational Autoencoders*; their Switchboard corpus): a line of JSON per dialogue.
Its "utts" are (speaker "A" or "B", text, features). Other keys and features are not read.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from highrank_plugins.cli import as_command, main
from highrank_plugins.common.blocks import option
from highrank_plugins.common.files import write_json, write_text
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.text_lines import byte_lines
from highrank_plugins.common.user_error import UserError

SPLITS = ("train", "valid", "test")
_WORD = re.compile(r"\w+|[^\w\s]+")
# markers of the next speaker; they occur in no text
RESPONDENT, OTHER = "<self>", "<other>"
# fairseq's name for a second test set
SCORED = "test1"
FILE = "test_multi_ref.json"
# "0-A: hello": any prefix, the speaker, a colon, the text
_UTTERANCE = re.compile(r"[^:]*([AB])\s*:(.*)", re.DOTALL)
# markers at the beginning of a dialogue and around sentences
_MARKS = re.compile(r"</?s>|<d>")


class Utterance(NamedTuple):
    """Hold what one of two people says. A noise has no words."""

    speaker: str
    words: list[str]


Dialogue = list[Utterance]


def words_of(text: str) -> list[str]:
    """Return runs of letters and digits, and of other characters, in lower case (Zhao et al.)."""
    return _WORD.findall(text.lower())


def corpus_files(folder: Path) -> list[Path]:
    """Return the three files of JSON lines, in `folder` or its `json_data`."""
    for place in (folder, folder / "json_data"):
        files = [place / f"{split}.jsonl" for split in SPLITS]
        missing = [path for path in files if not path.is_file()]
        if not missing:
            return files
        if len(missing) < len(files):
            raise UserError(f"{missing[0]} is missing: every split is needed")
    raise UserError(
        f"{folder} has no corpus: put {', '.join(f'{s}.jsonl' for s in SPLITS)} there, as the "
        "folder json_data of its authors has them"
    )


def read_corpus(folder: Path) -> dict[str, list[Dialogue]]:
    """Return the dialogues of each split; each has an utterance with words."""
    return {
        split: [
            _dialogue(parse_json(line, f"{path}:{number}"), f"{path}:{number}")
            for number, line in byte_lines(path, may_be_empty=False)
        ]
        for split, path in zip(SPLITS, corpus_files(folder), strict=True)
    }


def parse_json(text: bytes, place: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not JSON ({error}); copy the file again") from None


def _dialogue(raw: Any, place: str) -> Dialogue:
    dialogue: Dialogue = []
    utterances = raw.get("utts") if isinstance(raw, dict) else None
    for utterance in utterances if isinstance(utterances, list) else ():
        match utterance:
            case ("A" | "B" as speaker, str() as text, *_):
                dialogue.append(Utterance(speaker, words_of(text)))
            case _:
                raise UserError(f"{place}: {utterance!r} is not ('A' or 'B', text, …)")
    if not any(utterance.words for utterance in dialogue):
        raise UserError(f"{place}: a dialogue without utterances in a list 'utts'; remove it")
    return dialogue


class ReferredContext(NamedTuple):
    """Hold what was said, who answers, and one or more good answers, each of one or more words."""

    context: Dialogue
    speaker: str
    references: list[list[str]]


def input_files(corpus: Path) -> list[Path]:
    """Return what `write_parallel` reads: the dialogues, and the references if there are any."""
    multiple = corpus / FILE
    return corpus_files(corpus) + ([multiple] if multiple.is_file() else [])


def write_parallel(corpus: Path, output: Path, context: int) -> dict[str, int]:
    """Write `{train,valid,test,test1}.{context,response}` and `test1.references` into `output`.

    Each utterance but the first of its dialogue is a response to at most `context` utterances
    before it. Those without words are left out. `test1` has the contexts of `test_multi_ref.json`,
    with the first reference as the response. Without that file it is `test`, with the response as
    the only reference. References of a context are in one line, separated by tabs.
    `output`/counts.json has the number of utterances in each set, and how many are left out, by
    reason. Returns the number of contexts in each set.
    """
    sets: dict[str, list[ReferredContext]] = {}
    left_out: dict[str, dict[str, int]] = {}
    for split, dialogues in read_corpus(corpus).items():
        sets[split] = list(responses(dialogues))
        noises = sum(not utterance.words for dialogue in dialogues for utterance in dialogue)
        left_out[split] = {"without words": noises, "first of its dialogue": len(dialogues)}
    multiple = corpus / FILE
    sets[SCORED], left_out[SCORED] = sets["test"], left_out["test"]
    if multiple.is_file():
        entries = read_references(multiple)
        sets[SCORED] = [entry for entry in entries if entry.context]
        left_out[SCORED] = {"context without words": len(entries) - len(sets[SCORED])}
    for name, entries in sets.items():
        if not entries:
            raise ValueError(f"{corpus}: {name} has no utterance that responds to another")
        _write(output / f"{name}.context", (context_line(entry, context) for entry in entries))
        _write(output / f"{name}.response", (" ".join(e.references[0]) for e in entries))
    references = ("\t".join(map(" ".join, entry.references)) for entry in sets[SCORED])
    _write(output / f"{SCORED}.references", references)
    report = {name: _report(len(sets[name]), reasons) for name, reasons in left_out.items()}
    kinds = ("context", "response")
    write_json(output / "counts.json", {f"{n}.{k}": report[n] for n in report for k in kinds})
    return {name: len(entries) for name, entries in sets.items()}


def _report(kept: int, left_out: dict[str, int]) -> dict[str, Any]:
    """Return the entry of a run's ledger."""
    gone = {reason: {"sentences": number} for reason, number in left_out.items() if number}
    total = kept + sum(left_out.values())
    return {"in": {"sentences": total}, "out": {"sentences": kept}, "left out": gone}


def responses(dialogues: Iterable[Dialogue]) -> Iterator[ReferredContext]:
    """Yield each utterance but the first of its dialogue, with all that was said before it."""
    for dialogue in dialogues:
        spoken = [utterance for utterance in dialogue if utterance.words]
        for index, utterance in enumerate(spoken[1:], 1):
            yield ReferredContext(spoken[:index], utterance.speaker, [utterance.words])


def context_line(entry: ReferredContext, size: int) -> str:
    """Return the last `size` utterances, each with a mark: whether the respondent says it."""
    words: list[str] = []
    for utterance in entry.context[-size:]:
        words += [RESPONDENT if utterance.speaker == entry.speaker else OTHER, *utterance.words]
    return " ".join(words)


def _write(path: Path, lines: Iterable[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_references(path: Path) -> list[ReferredContext]:
    """Return contexts and references from a JSON list of {"context", "speaker", "responses"}.

    The beginning of a dialogue has a context without words.
    """
    entries = parse_json(path.read_bytes(), str(path))
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: must hold a list of contexts with their responses")
    return [_entry(entry, f"{path}: [{index}]") for index, entry in enumerate(entries)]


def _entry(raw: Any, place: str) -> ReferredContext:
    said, speaker, references = [], "", []
    match raw:
        case {"context": list() as texts, "speaker": str() as speaker,
              "responses": list() as answers}:  # fmt: skip
            with suppress(TypeError):  # no text
                said = [_UTTERANCE.fullmatch(text) for text in texts]
                references = [words_of(_MARKS.sub(" ", text)) for text in answers]
    if speaker not in ("A", "B") or not all(said) or not any(references):
        raise UserError(
            f"{place}: expected a list 'context' of texts such as '0-A: hello', a 'speaker' A or "
            "B, and a list 'responses' of texts, one with words"
        )
    spoken = [Utterance(text[1], words_of(_MARKS.sub(" ", text[2]))) for text in said if text]
    context = [utterance for utterance in spoken if utterance.words]
    return ReferredContext(context, speaker, [words for words in references if words])


def dialogue_text(
    corpus: Annotated[Path, "Folder with the corpus of Zhao et al. 2017."],
    output: Annotated[
        Path | None,
        typer.Argument(help="Directory for contexts and responses (default: print what is read)."),
    ] = None,
    context: int = option(9, "Number of utterances before a response.", ge=1),
) -> None:
    """Write dialogues as contexts, responses and references.

    Example: python recipes/switchboard/dialogue.py swda dialogues

    Without a directory it only prints the files that it reads, one per line.
    """
    if output is None:
        typer.echo("\n".join(map(str, input_files(corpus))))
        return
    with new_folder(output) as new:
        for name, count in write_parallel(corpus, new, context).items():
            typer.echo(f"{name}: {count} contexts")


if __name__ == "__main__":
    main(as_command(dialogue_text), "python recipes/switchboard/dialogue.py")
