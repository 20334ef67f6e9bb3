"""Read the scores and texts of a run for its record, and summarise the record for people."""

import math
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import read_json
from highrank_plugins.common.names import Score
from highrank_plugins.results import ledger, perplexity
from highrank_plugins.results.doubts import doubts
from highrank_plugins.results.metrics import metric_named
from highrank_plugins.results.scoring import read_nbest, read_together

SAMPLES = 5
DIALOGUES = 3
SHOWN_REFERENCES = 3


def read_scores(path: Path, finetuned: bool, data: Path | None = None) -> dict[str, Score]:
    """Return the scores in a file, or in the folder of a model's evaluations."""
    scores = _evaluations(path, data, finetuned) if path.is_dir() else _written_scores(path)
    for name, score in scores.items():
        if not isinstance(score.value, int | float) or not math.isfinite(score.value):
            raise ValueError(
                f"{path}: {name} is {score.value}, not a finite number: evaluate it again, with "
                "another checkpoint if this one has diverged"
            )
    return scores


def _evaluations(path: Path, data: Path | None, finetuned: bool) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    for split in ("test", "valid", "train"):
        if split != "train" or (path / "train.log").exists():
            scores |= perplexity.read_eval_lm(path / f"{split}.log", split)
    if finetuned:
        scores |= perplexity.before_finetuning(path)
    if data is not None and (unigram := perplexity.unigram_perplexity(data)):
        scores[perplexity.UNIGRAM] = unigram
    raw = data and data.with_name("text") / "test.txt"
    if raw and raw.is_file() and raw.parent.with_name("pieces").is_dir():
        scores |= perplexity.of_text(path / "test.log", raw) | scores
    for split, folder in (("test", path), ("valid", path / "valid")):
        scores |= perplexity.read_measures(folder, split)
    return scores


def _written_scores(path: Path) -> dict[str, Score]:
    found = read_json(path)
    try:
        if scores := {name: Score(**values) for name, values in found.items()}:
            return scores
    except (AttributeError, TypeError):
        pass
    raise ValueError(
        f"{path}: no scores with value and signature; write the file by `highrank evaluate score`"
    )


def read_paired(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not {"scores", "signature"} <= found.keys():
        raise ValueError(
            f"{path}: not a paired test; write the file by `highrank evaluate score --against`"
        )
    return found


def summary(result: dict[str, Any], texts: list[Path]) -> str:
    """Return samples, the ledger, the training's numbers, doubts and, at the end, the score."""
    metrics, signatures = result["metrics"], result["signatures"]
    if len(texts) not in (0, 3):
        raise ValueError("--samples: give three texts: source, references, and the model's")
    lines = _dialogues(texts) if "bleu1_precision" in metrics else _translations(texts)
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
        lines.append(f"{against}: p = {own['p_value']:.4f} {signature}")
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


def _spread(texts: list[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    places = ((2 * index + 1) * len(texts) // (2 * count) for index in range(count))
    return [texts[place] for place in places]


def _translations(texts: list[Path]) -> list[str]:
    names = ("source", "reference", "translation")
    return [
        "\n".join(f"{n:>12}  {s}" for n, s in zip(names, chosen, strict=True)) + "\n"
        for chosen in (_spread(read_together(texts), SAMPLES) if texts else [])
    ]


def _dialogues(texts: list[Path]) -> list[str]:
    """Return samples of contexts, references of a line each, and responses of fairseq-generate."""
    lines = []
    pairs = read_together(texts[:2]) if texts else []
    found = list(zip(pairs, read_nbest(texts[2], len(pairs)), strict=True)) if texts else []
    for (source, references), responses in _spread(found, DIALOGUES) if found else []:
        lines.append(f"   context  {source}")
        lines += [f" reference  {one}" for one in references.split("\t")[:SHOWN_REFERENCES]]
        lines += [*(f"  response  {one}" for one in responses), ""]
    return lines
