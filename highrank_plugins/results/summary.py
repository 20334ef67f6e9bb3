"""Read the scores and texts of a run for its record, and summarise the record for people."""

import math
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from highrank_plugins.common.names import Score
from highrank_plugins.results import ledger, perplexity
from highrank_plugins.results.doubts import doubts
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.record import LARGEST, read_as
from highrank_plugins.results.scoring import read_together

SAMPLES = 5


def read_scores(path: Path, finetuned: bool, data: Path | None = None) -> dict[str, Score]:
    """Return the scores in a file, or in the folder of a model's evaluations."""
    if path.is_dir():
        scores = _evaluations(path, data, finetuned)
    else:
        written = read_as(path, _Scores, "scores of `highrank evaluate score`")
        scores = {name: Score(**values) for name, values in written.items()}
    for name, score in scores.items():
        if not isinstance(score.value, int | float) or not abs(score.value) <= LARGEST:
            raise ValueError(
                f"{path}: {name} is {str(score.value)[:20]}, not a finite number: evaluate it "
                "again, with another checkpoint if this one has diverged"
            )
    return scores


def _evaluations(path: Path, data: Path | None, finetuned: bool) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    for split in ("test", "valid", "train"):
        if split != "train" or (path / "train.log").exists():
            scores |= perplexity.read_eval_lm(path / f"{split}.log", split)
    if finetuned:
        scores |= perplexity.before_finetuning(path)
    per_word = "|words:" in scores["test_perplexity"].signature  # and the unigram per piece
    if data and not per_word and (unigram := perplexity.unigram_perplexity(data)):
        scores[perplexity.UNIGRAM] = unigram
    raw = data and data.with_name("text") / "test.txt"
    if raw and raw.is_file() and raw.parent.with_name("pieces").is_dir():
        scores |= perplexity.of_text(path / "test.log", raw) | scores
    for split, folder in (("test", path), ("valid", path / "valid")):
        scores |= perplexity.read_measures(folder, split)
    return scores


@with_config(ConfigDict(extra="forbid"))
class _Written(TypedDict):
    value: Any  # see `read_scores`
    signature: str
    certificate: NotRequired[str]


class _System(TypedDict):
    system: str
    score: float
    p_value: float | None  # of the baseline there is none


class _Paired(TypedDict):
    scores: Annotated[list[_System], Field(min_length=2)]
    signature: str


_Scores = Annotated[dict[str, _Written], Field(min_length=1)]


def read_paired(path: Path) -> dict[str, Any]:
    return dict(read_as(path, _Paired, "a paired test of `highrank evaluate score --against`"))


def summary(result: dict[str, Any], texts: list[Path]) -> str:
    """Return samples, the ledger, the training's numbers, doubts and, at the end, the score."""
    metrics, signatures = result["metrics"], result["signatures"]
    if len(texts) not in (0, 3):
        raise ValueError("--samples: give three texts: source, references, and the model's")
    lines = _samples(texts) if texts else []
    known = ("chrf", "sacrebleu")
    if not {*known} <= metrics.keys():
        said = signatures | result.get("certificates", {})
        lines += [f"{name:>24}  {value}  {said[name]}" for name, value in metrics.items()]
    lines += ledger.describe(result.get("ledger", {}))
    numbers = {name: value for name, value in result["train"].items() if value is not None}
    said = ((metric_named(name).text or f"{name} {{:,.10g}}", n) for name, n in numbers.items())
    lines += [f"training: {', '.join(text.format(number) for text, number in said)}"]
    lines += doubts(result)
    if "paired" in result:
        other, *_, own = result["paired"]["scores"]
        signature = result["paired"]["signature"]
        against = f"against {other['system']}, {other['score']:.2f}"
        p_value = math.nan if own["p_value"] is None else own["p_value"]
        lines.append(f"{against}: p = {p_value:.4f} {signature}")
    last = {
        "chrf": "chrF",
        "sacrebleu": "sacreBLEU",
        perplexity.BYTE: "bits per byte of the test text",
        perplexity.WORD: "test perplexity per word",
        "test_perplexity": f"test perplexity{' per piece' if perplexity.WORD in metrics else ''}",
    }
    for name in filter(metrics.__contains__, known if "sacrebleu" in metrics else last):
        lines.append(f"{last[name]} {metrics[name]} {signatures[name]}")
    return "\n".join(lines)


def _samples(texts: list[Path]) -> list[str]:
    """Return sentences spread evenly over the text, each with its reference and translation."""
    names, lines = ("source", "reference", "translation"), read_together(texts)
    spread = ((2 * index + 1) * len(lines) // (2 * SAMPLES) for index in range(SAMPLES))
    places = dict.fromkeys(spread) if lines else ()  # a short text has fewer
    return [
        "\n".join(f"{n:>12}  {s}" for n, s in zip(names, lines[place], strict=True)) + "\n"
        for place in places
    ]
