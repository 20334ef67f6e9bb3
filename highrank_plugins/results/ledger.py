"""Count the sentences and tokens that each stage of a run took, left out and passed on.

A token is a word or piece that the model reads, or the end of a line. Text that is yet to be split
into pieces has words. Nothing is counted while the stages run: their outputs, reports and logs are
read at the end.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json
from highrank_plugins.common.score import Score
from highrank_plugins.data.parallel.cleaning import KEPT
from highrank_plugins.data.parallel.preparing import REPORT, words_of
from highrank_plugins.results.perplexity import BEFORE
from highrank_plugins.results.scoring import ScoreError

Tally = dict[str, int]
# stage → text, as `train.en` → "in" and "out", each a tally; "left out", a tally for each reason
Ledger = dict[str, dict[str, dict[str, Any]]]

_TEXT = re.compile(r"(?:train|valid|test\d*)\.[\w-]+")
_INDEX = re.compile(r"(train|valid|test\d*)(?:\.[^.]+\.([\w-]+))?\.idx")
_SKIPPED = re.compile(r"([\d,]+) samples have invalid sizes and will be skipped, [^(]*\((.*?)\)")
_SCORED = re.compile(r"tokens:(\d+)")
_MAGIC = b"MMIDIDX\x00\x00"
_LENGTH_AT, _SIZES_AT = len(_MAGIC) + 9, len(_MAGIC) + 17
FIRST_SHARD = "shard01"  # the shard that measures a corpus's training perplexity
_BLOCK = 1 << 24  # bytes read at once


def read_ledger(
    data: Path, training: Path, target: str | None = None, finetuning: Path | None = None
) -> Ledger:
    """Count sentences and tokens in all stages of a run before its scores.

    Args:
        data: binarised data, or its shards in folders; `text` and `pieces` are next to it.
        training: the --save-dir, with train.log or logs/rank0.log.
        target: target language of a translator.
        finetuning: the --save-dir of a second training run, which continued the first.
    Raises:
        ScoreError: a stage lost sentences, or returned more than it took.
    """
    pieces = _count_texts(data.parent / "pieces")
    text = _count_texts(data.parent / "text", in_pieces=not pieces)
    binarised = _count_binarised(data)
    ledger: Ledger = {"text": _text(text, data.parent / "text")}
    ledger["pieces"] = {part: _entry(text.get(part, out), out) for part, out in pieces.items()}
    before = pieces or text
    ledger["data-bin"] = {
        part: _entry(_matching(before, part) or out, out) for part, out in binarised.items()
    }
    name = "train" if target is None else f"train.{target}"
    for stage, folder in (("train", training), ("finetune", finetuning)):
        if folder is not None and name in binarised:
            ledger[stage] = {name: _trained(binarised[name], data, target, folder)}
    ledger = {stage: parts for stage, parts in ledger.items() if parts}
    for stage, parts in ledger.items():
        for part, counts in parts.items():
            _check(stage, part, counts)
    return ledger


def add_scored(
    ledger: Ledger,
    scores: Mapping[str, Score],
    target: str | None = None,
    translations: Path | None = None,
) -> None:
    """Add the stage `evaluate`: numbers of scored tokens and of translations.

    Args:
        translations: of the test set, a line each; a missing file is not counted.
    Raises:
        ScoreError: less or more than the text was scored.
    """
    found: dict[str, dict[str, Tally]] = {}
    test = ledger.get("data-bin", {}).get(f"test.{target}")
    if translations is not None and translations.is_file() and test is not None:
        count, total = _lines(translations), test["out"]["sentences"]
        if count != total:
            raise ScoreError(
                f"{translations}: {count:,} translations of {total:,} sentences; a score needs "
                "all of them: translate the test set again"
            )
        found[f"test.{target}"] = _entry({"sentences": total}, {"sentences": count})
    for metric, score in scores.items():
        split, _, kind = metric.partition("_")
        part = split if target is None else f"{split}.{target}"
        binarised = ledger.get("data-bin", {})
        shard = f"{FIRST_SHARD}/{part}"
        part = shard if shard in binarised else part
        text, tokens = binarised.get(part), _SCORED.match(score.signature)
        if text is None or tokens is None or not kind.removesuffix(BEFORE).endswith("perplexity"):
            continue
        scored, total = int(tokens[1]), text["out"]["tokens"]
        if scored != total:
            raise ScoreError(
                f"{metric}: {scored:,} of {total:,} tokens of {split} were scored; a result needs "
                "all of them: remove the folder of the evaluation and run it again"
            )
        found[part] = _entry({"tokens": total}, {"tokens": scored})
    if found:
        ledger["evaluate"] = found


def describe(ledger: Ledger) -> list[str]:
    """Return a line for each text of which a stage left out a part, and for each scored text."""
    lines = []
    for stage, parts in ledger.items():
        for part, counts in parts.items():
            for unit, number in counts["out"].items():
                took = counts["in"].get(unit, number)
                if took != number or stage == "evaluate":
                    left_out = [
                        f"{reason} {count:,}" for reason, count in _by_reason(counts, unit).items()
                    ]
                    why = f"; left out: {', '.join(left_out)}" if left_out else ""
                    lines.append(f"{stage}, {part}: {number:,} of {took:,} {unit}{why}")
    return lines


def _entry(
    before: Tally, after: Tally, left_out: Mapping[str, Tally] | None = None
) -> dict[str, Any]:
    return {"in": dict(before), "out": dict(after), "left out": dict(left_out or {})}


def _by_reason(counts: Mapping[str, Any], unit: str) -> Tally:
    """Return what was left out, in one unit. Records of earlier revisions count sentences only."""
    found = {
        reason: {"sentences": tally} if isinstance(tally, int) else tally
        for reason, tally in counts["left out"].items()
    }
    return {reason: tally[unit] for reason, tally in found.items() if unit in tally}


def _check(stage: str, part: str, counts: Mapping[str, Any]) -> None:
    took, gave = counts["in"].get("sentences"), counts["out"].get("sentences")
    left_out = sum(_by_reason(counts, "sentences").values())
    if took is not None and gave is not None and took - left_out != gave:
        raise ScoreError(
            f"{stage}: {part} has {gave:,} sentences, expected {took - left_out:,} ({took:,} in, "
            f"{left_out:,} left out); remove the folder and run the stage again"
        )


def _text(text: dict[str, Tally], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of cleaned text with the reasons of cleaning.json or counts.json."""
    found = {part: _entry(out, out) for part, out in text.items()}
    cleaning, counts = folder / REPORT, folder / "counts.json"
    if cleaning.is_file():
        report = read_json(cleaning)
        for part in found:
            split, _, language = part.partition(".")
            if split == "train":
                left_out = {reason: {"sentences": n} for reason, n in report["all"].items()}
                for reason, words in report.get(words_of(language), {}).items():
                    left_out[reason]["words"] = words
                took = Counter[str]()
                for tally in left_out.values():
                    took.update(tally)
                left_out.pop(KEPT)
                found[part] = _entry(took, text[part], left_out)
    if counts.is_file():
        for part, entry in read_json(counts).items():
            if part in found:
                out = {**entry["out"], **text[part]}
                found[part] = _entry(entry["in"], out, entry["left out"])
    return found


def _trained(text: Tally, data: Path, target: str | None, training: Path) -> dict[str, Any]:
    """Return what an epoch trains on: all but the samples that fairseq skips."""
    logs = [training / "train.log", training / "logs" / "rank0.log"]
    match = next(filter(None, map(_skipped, filter(Path.is_file, logs))), None)
    if match is None:
        return _entry(text, text)
    skipped = int(match[1].replace(",", ""))
    left_out = {"sentences": skipped}
    tokens = None if target is None else _tokens_beyond(data, target, match[2], skipped)
    if tokens is not None:
        left_out["tokens"] = tokens
    kept = {unit: text[unit] - number for unit, number in left_out.items()}
    return _entry(text, kept, {"longer than the model's positions": left_out})


def _skipped(log: Path) -> re.Match[str] | None:
    """Return the number of skipped training samples, and the limits of their lengths.

    fairseq says the same of a validation set, and does not say of which set; it makes batches of
    the training set first.
    """
    with log.open(encoding="utf-8", errors="replace") as lines:
        before = takewhile(lambda line: "begin validation on" not in line, lines)
        return next(filter(None, map(_SKIPPED.search, before)), None)


def _tokens_beyond(data: Path, target: str, limits: str, skipped: int) -> int | None:
    """Return the target tokens of the pairs that fairseq skipped, longer than `limits`.

    Args:
        limits: most tokens of source and target, as `1024, 1024`.
    Returns:
        None if other pairs are that long, as for a part of the data.
    """
    paths = {path.name.split(".")[-2]: path for path in data.glob("train.*.idx")}
    numbers = [int(word) for word in re.findall(r"\d+", limits)]
    sizes = [_sizes(path) for path in (*(paths[k] for k in paths if k != target), paths[target])]
    if len(numbers) != 2 or len(sizes) != 2 or any(found is None for found in sizes):
        return None
    is_long = (sizes[0] > numbers[0]) | (sizes[1] > numbers[1])
    return int(sizes[1][is_long].sum()) if is_long.sum() == skipped else None


def _matching(parts: dict[str, Tally], part: str) -> Tally | None:
    """Return the text of a binarised part: `train.txt` for `train`."""
    return parts.get(part if "." in part else f"{part}.txt")


def _count_texts(folder: Path, in_pieces: bool = True) -> dict[str, Tally]:
    """Return the sentences of each text, with its tokens or, of text without pieces, its words."""
    paths = sorted(path for path in folder.glob("*.*") if _TEXT.fullmatch(path.name))
    found: dict[str, Tally] = {}
    for path in paths:
        lines, words = _lines(path), _words(path)
        number = {"tokens": words + lines} if in_pieces else {"words": words}
        found[path.name] = {"sentences": lines, **number}
    return found


def _words(path: Path) -> int:
    """Return the number of words between blanks."""
    import numpy as np

    blanks = np.zeros(256, dtype=bool)
    blanks[list(b" \t\n\v\f\r")] = True
    count, before = 0, True
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            blank = blanks[np.frombuffer(block, dtype=np.uint8)]
            count += int(np.count_nonzero(blank[:-1] & ~blank[1:])) + int(before and not blank[0])
            before = bool(blank[-1])
    return count


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))


def _count_binarised(data: Path) -> dict[str, Tally]:
    """Return sentences and tokens of each split; those of all shards together."""
    found: dict[str, Tally] = {}
    whole = sorted(data.glob("*.idx"))
    for path in [*whole, *sorted(data.glob("shard*/train.idx"))]:
        match = _INDEX.fullmatch(path.name)
        sizes = _sizes(path) if match else None
        if match is None or sizes is None:
            continue
        part = ".".join(filter(None, match.groups()))
        shard = [f"{FIRST_SHARD}/{part}"] if path.parent.name == FIRST_SHARD else []
        for name in [part, *shard]:
            so_far = found.setdefault(name, {"sentences": 0, "tokens": 0})
            so_far["sentences"] += len(sizes)
            so_far["tokens"] += int(sizes.sum())
    return found


def _sizes(path: Path) -> Any:
    """Return the lengths of all lines, with their ends; None for fairseq's other formats."""
    import numpy as np

    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(_LENGTH_AT)
        count = int.from_bytes(file.read(_SIZES_AT - _LENGTH_AT), "little")
        return np.fromfile(file, dtype="<i4", count=count).astype(np.int64)
