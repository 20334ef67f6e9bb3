"""Measures of a model that `highrank analyse` wrote, as the scores of a record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from highrank_plugins.experiments.distinct_names import distinct_names
from highrank_plugins.experiments.scoring import Score, ScoreError

Found = dict[str, Any]


def read_measures(directory: Path, split: str) -> dict[str, Score]:
    """The scores in all files of `directory` that are named as a key of `READERS`.

    Args:
        split: on which they were measured; names begin with it.
    Raises:
        ScoreError: a file of such a name is no such result.
    """
    scores: dict[str, Score] = {}
    for name, read in READERS.items():
        path = directory / f"{name}.json"
        if not path.is_file():
            continue
        try:
            scores |= read(json.loads(path.read_text(encoding="utf-8")), split)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ScoreError(f"{path}: no result of analyse {name} ({error!r})") from None
    return scores


def _spectrum(found: Found, split: str) -> dict[str, Score]:
    """`<split>_rank`, `<split>_effective_rank_<ε>`, and what the impossible classes cost."""
    matrix = f"contexts:{found['contexts']}|words:{found['words']}|dtype:{found['dtype']}"
    effective = {
        f"{split}_effective_rank_{eps}": Score(rank, f"eps:{eps}|{matrix}|method:{found['method']}")
        for eps, rank in found["effective_rank"].items()
    }
    return {
        f"{split}_rank": Score(found["press_rank"], f"press|{matrix}|method:{found['method']}"),
        **effective,
        f"{split}_impossible_nats": Score(found["impossible_nats"], matrix),
    }


def _kld(found: Found, split: str) -> dict[str, Score]:
    """`<split>_kld`, in nats, of two contexts drawn at random."""
    value, drawn = found["all_pairs"], "all"
    if value is None:
        value, drawn = found["sampled"]["mean"], found["sampled"]["pairs"]
    return {f"{split}_kld": Score(value, f"contexts:{found['contexts']}|pairs:{drawn}")}


def _predictions(found: Found, split: str) -> dict[str, Score]:
    """`<split>_top_<k>`, the share in percent, and `<split>_entropy`, in nats."""
    tokens = f"tokens:{found['tokens']}"
    shares = found["top_k_share"].items()
    return {
        **{f"{split}_top_{k}": Score(round(100 * share, 4), tokens) for k, share in shares},
        f"{split}_entropy": Score(found["entropy"], tokens),
    }


def _retention(found: Found, split: str) -> dict[str, Score]:
    """`<split>_retention`, the share of the logits' gradient that reaches the features."""
    return {f"{split}_retention": Score(found["whole"], f"tokens:{found['tokens']}")}


def _word_similarity(found: Found, split: str) -> dict[str, Score]:
    """`similarity_<benchmark>`, and `word_similarity`, their mean weighted by pairs used."""
    del split  # rows of the vocabulary matrix belong to none
    benchmarks = found["benchmarks"]
    names = distinct_names([Path(path) for path in benchmarks])
    defined = {
        name: values
        for name, values in zip(names, benchmarks.values(), strict=True)
        if values["spearman"] is not None
    }
    scores = {
        f"similarity_{name}": Score(
            values["spearman"], f"spearman|used:{values['used']}|missing:{values['missing']}"
        )
        for name, values in defined.items()
    }
    if defined:
        used = sum(values["used"] for values in defined.values())
        mean = sum(values["spearman"] * values["used"] for values in defined.values()) / used
        signature = f"spearman|benchmarks:{len(defined)}|used:{used}"
        scores["word_similarity"] = Score(mean, signature)
    return scores


# name of the file, which is that of the subcommand → its scores
READERS: dict[str, Callable[[Found, str], dict[str, Score]]] = {
    "spectrum": _spectrum,
    "kld": _kld,
    "predictions": _predictions,
    "retention": _retention,
    "word_similarity": _word_similarity,
}
