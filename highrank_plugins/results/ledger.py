"""Count the sentences and tokens that each stage of a run took, left out and passed on.

A token is a word or piece that the model reads, or the end of a line. Text that is yet to be split
into pieces has words. Nothing is counted while the stages run: their outputs, reports and logs are
read at the end. Averaging checkpoints reads no text and has no entry.

By default no training drops its last batch. Streams of a language model differ in length by one
token at most, and padding fills the shorter ones. The last batch of an epoch of translations is
smaller than the others. Two options of fairseq drop it, another one in each epoch, so its tokens
have no number here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from highrank_plugins.common.names import Score
from highrank_plugins.data.binarising import sizes_of
from highrank_plugins.data.parallel import KEPT, REPORT, words_of
from highrank_plugins.results.perplexity import BEFORE, tokens_read
from highrank_plugins.results.record import Count, read_as

Tally = dict[str, Count]
Counted = TypedDict("Counted", {"in": Tally, "out": Tally, "left out": dict[str, Tally]})
Ledger = dict[str, dict[str, Counted]]  # stage → text, as `train.en` → entry

_SKIPPED = re.compile(r"([\d,]+) samples have invalid sizes and will be skipped, [^(]*\((.*?)\)")
FIRST_SHARD = "shard01"  # the shard that measures a corpus's training perplexity
_TEXT = re.compile(r"(?:train|valid|test\d*)\.[\w-]+")
_INDEX = re.compile(r"(train|valid|test\d*)(?:\.[^.]+\.([\w-]+))?\.idx")
_HYPOTHESIS = re.compile(rb"([HP])-(\d+)\t(.*)", re.DOTALL)
_SCORED = re.compile(r"tokens:(\d+)")


def read_ledger(
    data: Path,
    trainings: Sequence[Path],
    target: str | None = None,
    generated: Sequence[Path] = (),
    folder: Path | None = None,
    scores: Mapping[str, Score] = {},
) -> Ledger:
    """Count sentences and tokens in all stages of a run; refuse a stage that lost some.

    `trainings` are those of training and finetuning, `generated` the outputs of fairseq-generate,
    and `folder` has results of measures and the translations of the test text.
    """
    pieces = _count_texts(data.parent / "pieces")
    text = _count_texts(data.parent / "text", in_pieces=not pieces)
    binarised = _count_binarised(data)
    before, suffix = pieces or text, "" if target is None else f".{target}"
    took = {part: before.get(part if "." in part else f"{part}.txt") for part in binarised}
    name = f"train{suffix}"
    ledger: Ledger = {
        "text": _text(text, data.parent / "text"),
        "pieces": {part: _entry(text.get(part, out), out) for part, out in pieces.items()},
        "data-bin": {part: _entry(took[part] or out, out) for part, out in binarised.items()},
    }
    for stage, training in zip(("train", "finetune"), trainings, strict=False):
        if name in binarised:
            ledger[stage] = {name: _trained(binarised[name], data, target, training)}
    ledger["generate"] = _generated(binarised, generated, str(target))
    ledger["evaluate"] = dict(_scored(binarised, scores, suffix))
    if folder is not None:
        test, translations = f"test{suffix}", folder / f"test{suffix}"
        if target is not None and translations.is_file() and test in binarised:
            references = {**text.get(test, {}), **binarised[test]}
            with translations.open("rb") as lines:
                scored = references | {"sentences": sum(1 for _ in lines)}
            ledger["evaluate"][test] = _entry(references, scored)
        for split, results in (("test", folder), ("valid", folder / "valid")):
            if (whole := binarised.get(part := f"{split}{suffix}")) is not None:
                for measure, used in tokens_read(results).items():
                    ledger.setdefault(measure, {})[part] = _measured(whole, used)
    ledger = {stage: parts for stage, parts in ledger.items() if parts}
    for stage, parts in ledger.items():
        for part, counts in parts.items():
            _require_whole(f"{stage}: {part}", counts)
    return ledger


def _count_texts(folder: Path, in_pieces: bool = True) -> dict[str, Tally]:
    """Return the sentences of each text, with its tokens or, of text without pieces, its words."""
    paths = sorted(path for path in folder.glob("*.*") if _TEXT.fullmatch(path.name))
    found: dict[str, Tally] = {}
    for path in paths:
        lines = words = 0
        with path.open("rb") as file:
            for line in file:  # as `fairseq.tokenizer` splits it
                lines, words = lines + 1, words + len(line.decode(errors="replace").split())
        number = {"tokens": words + lines} if in_pieces else {"words": words}
        found[path.name] = {"sentences": lines, **number}
    return found


def _count_binarised(data: Path) -> dict[str, Tally]:
    """Return sentences and tokens of each split; those of all shards together."""
    found: dict[str, Tally] = {}
    whole = sorted(data.glob("*.idx"))
    for path in [*whole, *sorted(data.glob("shard*/train.idx"))]:
        match = _INDEX.fullmatch(path.name)
        sizes = sizes_of(path) if match else None
        if match is None or sizes is None:
            continue
        part = ".".join(filter(None, match.groups()))
        shard = [f"{FIRST_SHARD}/{part}"] if path.parent.name == FIRST_SHARD else []
        for name in [part, *shard]:
            so_far = found.setdefault(name, {"sentences": 0, "tokens": 0})
            so_far["sentences"] += len(sizes)
            so_far["tokens"] += int(sizes.sum())
    return found


def _count_hypotheses(output: Path) -> tuple[set[int], int]:
    """Return the numbers of the sentences with hypotheses, and the tokens of all hypotheses."""
    numbers: set[int] = set()
    tokens = 0
    with output.open("rb") as lines:
        for match in filter(None, map(_HYPOTHESIS.match, lines)):
            if match[1] == b"H":
                numbers.add(int(match[2]))
            else:
                tokens += len(match[3].split())
    return numbers, tokens


def _require_whole(name: str, counts: Counted) -> None:
    for unit in counts["in"].keys() & counts["out"].keys():
        took, gave = counts["in"][unit], counts["out"][unit]
        left_out = sum(_by_reason(counts, unit).values())
        if took - left_out != gave:
            raise ValueError(
                f"{name} has {gave:,} {unit}, expected {took - left_out:,} ({took:,} in, "
                f"{left_out:,} left out); remove the folder and run the stage again"
            )


def _generated(
    binarised: Mapping[str, Tally], outputs: Sequence[Path], target: str
) -> dict[str, Counted]:
    """Return source sentences, and sentences and tokens of all hypotheses."""
    found: dict[str, Counted] = {}
    for output in outputs:
        numbers, tokens = _count_hypotheses(output)
        for part, source in binarised.items():
            split, _, language = part.partition(".")
            if split == output.stem and language != target:
                total = source["sentences"]
                right = {"sentences": total - len(numbers ^ {*range(total)})}
                found[part] = _entry(source, source | right)
                made = right | {"tokens": tokens}
                found[f"{split}.{target}"] = _entry({"sentences": total}, made)
    return found


def _measured(whole: Tally, used: int) -> Counted:
    """Return the tokens that a measure of a text used, one per context."""
    unused = whole["tokens"] - used
    if unused == 0:
        return _entry(whole, whole)
    left_out = {"after --tokens": {"tokens": unused}} if unused > 0 else {}  # by no other option
    return _entry({"tokens": whole["tokens"]}, {"tokens": used}, left_out)


def _scored(
    binarised: Mapping[str, Tally], scores: Mapping[str, Score], suffix: str
) -> Iterator[tuple[str, Counted]]:
    """Yield the scored sentences and tokens; those of a part of the text come last."""
    found = []
    for metric, score in scores.items():
        split, _, kind = metric.partition("_")
        shard = f"{FIRST_SHARD}/{split}{suffix}"
        part = shard if shard in binarised else f"{split}{suffix}"
        tokens = _SCORED.match(score.signature)
        if part in binarised and tokens and kind.removesuffix(BEFORE).endswith("perplexity"):
            text = binarised[part]  # with its ends, each line is scored
            found.append((part, _entry(text, text | {"tokens": int(tokens[1])})))
    yield from sorted(found, key=lambda one: one[1]["in"] != one[1]["out"])


def describe(ledger: Ledger) -> list[str]:
    """Return lines for each text of which a stage left out a part, and for each scored text."""
    lines = []
    for stage, parts in ledger.items():
        for part, counts in parts.items():
            for unit, number in counts["out"].items():
                took = counts["in"].get(unit, number)
                if took != number or stage == "evaluate":
                    reasons = _by_reason(counts, unit).items()
                    left_out = ", ".join(f"{reason} {count:,}" for reason, count in reasons)
                    why = f"; left out: {left_out}" if left_out else ""
                    lines.append(f"{stage}, {part}: {number:,} of {took:,} {unit}{why}")
            uncounted = [reason for reason, tally in counts["left out"].items() if tally == {}]
            lines += [f"{stage}, {part}: left out, not counted: {why}" for why in uncounted]
    return lines


def _entry(before: Tally, after: Tally, left_out: Mapping[str, Tally] | None = None) -> Counted:
    return {"in": dict(before), "out": dict(after), "left out": dict(left_out or {})}


def _by_reason(counts: Mapping[str, Any], unit: str) -> Tally:
    left_out = counts["left out"].items()
    return {reason: tally[unit] for reason, tally in left_out if unit in tally}


def _text(text: dict[str, Tally], folder: Path) -> dict[str, Counted]:
    """Return the entries of cleaned text with the reasons of cleaning.json or counts.json."""
    found = {part: _entry(out, out) for part, out in text.items()}
    cleaning, counts = folder / REPORT, folder / "counts.json"
    if cleaning.is_file():
        report = read_as(cleaning, dict[str, Tally], "counts of cleaned text")
        for part in found:
            split, _, language = part.partition(".")
            if split == "train":
                left_out: dict[str, Tally] = {KEPT: {"sentences": 0}}
                for unit, key in (("sentences", "all"), ("words", words_of(language))):
                    for reason, number in report.get(key, {}).items():
                        left_out.setdefault(reason, {})[unit] = number
                took = Counter[str]()
                for tally in left_out.values():
                    took.update(tally)
                left_out.pop(KEPT)
                found[part] = _entry(took, text[part], left_out)
    if counts.is_file():
        for part, entry in read_as(counts, dict[str, Counted], "counts of text").items():
            if part in found:
                out = {**entry["out"], **text[part]}
                found[part] = _entry(entry["in"], out, entry["left out"])
    return found


def _trained(text: Tally, data: Path, target: str | None, training: Path) -> Counted:
    """Return what an epoch trains on: all but the samples that fairseq skips."""
    match, left_out, kept = None, dict[str, Tally](), dict(text)
    for log in filter(Path.is_file, (training / "train.log", training / "logs" / "rank0.log")):
        with log.open(encoding="utf-8", errors="replace") as lines:
            before = takewhile(lambda line: "begin validation on" not in line, lines)
            match = match or next(filter(None, map(_SKIPPED.search, before)), None)
    if match is not None:
        skipped = int(match[1].replace(",", ""))
        tally = {"sentences": skipped}
        tokens = None if target is None else _tokens_beyond(data, target, match[2], skipped)
        if tokens is not None:
            tally["tokens"] = tokens
        kept = {unit: text[unit] - number for unit, number in tally.items()}
        left_out["longer than the model's positions"] = tally
    command = training / "command.sh"
    words = command.read_text(encoding="utf-8").split() if command.is_file() else []
    has_several_processes = (training / "logs" / "rank1.log").exists()
    grouped = "--grouped-shuffling" in words and has_several_processes
    if grouped or "--skip-remainder-batch" in words:  # these drop the end of each epoch
        return _entry(text, {}, {**left_out, "last batch": {}})
    return _entry(text, kept, left_out)


def _tokens_beyond(data: Path, target: str, limits: str, skipped: int) -> int | None:
    """Return the target tokens of pairs longer than `1024, 1024`; None if others are, too."""
    paths = {path.name.split(".")[-2]: path for path in data.glob("train.*.idx")}
    numbers = [int(word) for word in re.findall(r"\d+", limits)]
    sizes = [sizes_of(path) for path in (*(paths[k] for k in paths if k != target), paths[target])]
    if len(numbers) != 2 or len(sizes) != 2 or any(found is None for found in sizes):
        return None
    is_long = (sizes[0] > numbers[0]) | (sizes[1] > numbers[1])
    return int(sizes[1][is_long].sum()) if is_long.sum() == skipped else None
