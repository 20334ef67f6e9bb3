"""Write and read the JSON record of a run, and several that are compared."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import index
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Required

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from highrank_plugins.common.files import read_json
from highrank_plugins.common.formatting import CONTROL
from highrank_plugins.common.names import direction, flag
from highrank_plugins.common.provenance import conditions
from highrank_plugins.results import doubts

if TYPE_CHECKING:
    from highrank_plugins.common.names import Score

METRICS = "metrics.jsonl"  # of a training run, see hooks/metrics.py
RESULTS = "results.json"  # file name of a recipe's record
# what a run keeps to its end; a launcher sets batches, and a longer run has other limits
OF_A_RUN = ("arch", "seed", "task", "criterion", "optimizer", "lr", "dropout", "label_smoothing")


LARGEST = 1e99  # squares and sums stay finite below


def bounded(value: float) -> float:
    if LARGEST < abs(value) < math.inf:
        raise ValueError("no score, size or time is beyond 1e99")
    return value


BoundedFloat = Annotated[float, AfterValidator(bounded)]  # NaN is the reader's to judge
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


def _positive(numbers: dict[str, float | None]) -> dict[str, float | None]:
    for name, value in numbers.items():
        if value is not None and value < 0 and not name.endswith("loss"):
            raise ValueError(f"{name} is below 0")
    return numbers


_Training = Annotated[dict[str, BoundedFloat | None], AfterValidator(_positive)]


class _Finetuning(TypedDict, total=False):
    command: str
    train: _Training


class _Hardware(TypedDict, total=False):
    processor: str
    cores: Count
    gpus: list[str]
    flags: list[str]


class _Record(TypedDict, total=False):
    """Describe what our commands read in a record; anything else may be there, too."""

    metrics: Required[
        Annotated[dict[Annotated[str, Field(max_length=200)], BoundedFloat], Field(min_length=1)]
    ]
    signature: str
    signatures: dict[str, str]
    certificates: dict[str, str]
    config: dict[str, dict[str, bool | Whole | BoundedFloat | str | None] | None]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1)]
    command: str
    data: str | None
    vocabulary: str | None
    train: _Training
    finetune: _Finetuning
    versions: dict[str, str]
    git: dict[str, str | bool | None] | None
    hardware: _Hardware


# control characters in JSON, but for line feeds and tabs, and halves of characters
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u00|[bfr])|[\x7f-\x9f\ud800-\udfff]")


class RecordedTraining(NamedTuple):
    """Hold a training run's command, its summary, and what computed each layer's loss."""

    command: str
    summary: dict[str, float]
    implementations: Mapping[str, str] = MappingProxyType({})


def make_record(
    scores: dict[str, "Score"],
    config: Mapping[str, Any],
    training: RecordedTraining,
    finetuning: RecordedTraining | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return all that is needed to judge and repeat a result; the first score is to be reported."""
    train = config.get("train") or {}
    for name in (one for one in train if one in OF_A_RUN or one.startswith("head")):
        word = re.search(rf"(?<!\S){flag(name)}[ =]['\"]?([^\s'\"$-][^\s'\"]*)", training.command)
        own = str(train[name])
        if word and "fairseq-train" in training.command and _value(word[1]) != _value(own):
            raise ValueError(
                f"--training: its command has {flag(name)} {word[1]}, and the configuration {name} "
                f"{own}; give the files of one run"
            )
    if finetuning is not None:
        more["finetune"] = {"command": finetuning.command, "train": finetuning.summary}
    more["implementations"] = dict(training.implementations)
    more["certificates"] = {name: s.certificate for name, s in scores.items() if s.certificate}
    record = {
        "metrics": {name: score.value for name, score in scores.items()},
        "signature": next(iter(scores.values())).signature,
        "signatures": {name: score.signature for name, score in scores.items()},
        "config": config,
        "seeds": [train.get("seed", 1)],  # 1 is fairseq's default
        "command": training.command,
        "train": training.summary,
        **{name: value for name, value in more.items() if value},
        **conditions(),
    }
    return record | {"doubts": doubts.doubts(record)}


def _value(text: str) -> str | float:
    """Return an option's value so that 1e-3, [0.001] and 0.001 are equal."""
    text = text.strip("[]() ")
    try:
        return float(text)
    except ValueError:
        return text


def read_training(folder: Path) -> RecordedTraining:
    """Read a training run that a recipe has run: `command.sh` and the numbers in `--save-dir`."""
    path = folder / METRICS
    command = (folder / "command.sh").read_text(encoding="utf-8").rstrip()
    try:
        entries = [dict(json.loads(line)) for line in path.read_bytes().splitlines()]
        summary = summarise(entries)
        used = [dict(entry["implementations"]) for entry in entries if "implementations" in entry]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: a line of numbers is damaged: {error!r}") from None
    if "updates" not in summary:
        raise ValueError(f"{path}: no numbers of a training run; give the folder of one")
    if bad := [f"{name} is {value}" for name, value in summary.items() if not math.isfinite(value)]:
        raise ValueError(f"{path}: {', '.join(bad)}: the training run has diverged")
    return RecordedTraining(command, summary, *used[-1:])


def summarise(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return updates, epochs, times, median speed, losses, parameters and memory."""
    start = next((entry for entry in entries if entry["tag"] == "start"), {})
    trained = [entry for entry in entries if entry["tag"] in ("train_inner", "train")]
    epochs = {int(entry["epoch"]): entry for entry in trained if entry["tag"] == "train"}
    validations = [entry for entry in entries if entry["tag"] == "valid"]
    if not trained:
        return {}
    last = trained[-1]
    summary = {"updates": _number(last, "num_updates"), "wall_seconds": _number(last, "wall")}
    summary["epochs"] = max(epochs, default=0)
    if epochs:
        speeds = [_number(entry, "wps") for entry in epochs.values()]
        summary["words_per_second"] = round(median(speeds), 1)
    ends = {number: _number(entry, "wall") for number, entry in epochs.items()}
    steps = [(ends[b] - ends[a]) for a, b in pairwise(ends) if b == a + 1 and ends[b] > ends[a]]
    if steps:
        summary["seconds_per_epoch"] = round(median(steps), 1)
    names = ["loss", *(name for name in (validations or [{}])[0] if direction(name) > 0)]
    for name in names if validations else ():
        numbers = [_number(entry, name) for entry in validations if name in entry]
        best = max(numbers) if direction(name) > 0 else min(numbers)
        summary |= {f"valid_{name}": numbers[-1], f"best_valid_{name}": best}
    if "parameters" in start:
        summary["parameters"] = index(start["parameters"])
    if memory := [
        float(entry["peak_memory_gib"]) for entry in trained if "peak_memory_gib" in entry
    ]:
        summary["peak_memory_gib"] = max(memory)
    return summary


def _number(entry: dict[str, Any], name: str) -> float:
    """Return a number as fairseq prints it, to three digits; the file has null for NaN."""
    return math.nan if entry[name] is None else round(float(entry[name]), 3)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what checks a value; to make it takes longer than a hundred checks."""
    return TypeAdapter(kind)


def read_as(path: Path, kind: Any, what: str) -> Any:
    """Return the value in a JSON file; refuse one of another kind, by its first wrong place."""
    found = read_json(path)
    try:
        _adapter(kind).validate_python(found, strict=True)
    except ValidationError as error:
        (first, *_) = error.errors(include_input=False, include_url=False)
        said = first["msg"].removeprefix("Value error, ")
        place = ".".join(map(str, first["loc"]))[:80] or "its content"
        raise ValueError(f"{path}: not {what}: {place}: {said}; write it again") from None
    return found


def load_record(path: Path, finite: bool = True) -> dict[str, Any]:
    """Load a record; refuse it if it is damaged, or has a metric that is not finite."""
    record = read_as(path, _Record, "a record of a run, as `highrank record` writes it")
    found, seeds = record["metrics"], record.get("seeds")
    own = (record.get("config") or {}).get("train") or {}
    if seeds and [str(seed) for seed in seeds] != [str(own.get("seed", *seeds[:1]))]:
        raise ValueError(f"{path}: seeds are {seeds}, and train.seed is {own.get('seed')}")
    if CONTROL.search(str(path)) or _CONTROL.search(json.dumps(record, ensure_ascii=False)):
        raise ValueError(f"{path}: its name or content has control characters; remove them")
    bad = [name for name, value in found.items() if finite and not math.isfinite(value)]
    if bad:
        raise ValueError(f"{path}: {bad[0]} is not a number; leave it out or repeat the run")
    for wrong in filter(None, map(doubts.impossible, found, found.values())):
        raise ValueError(f"{path}: {wrong}; correct it or repeat the run")
    return {"train": {}, "hardware": {}, "versions": {}, "git": None} | record
