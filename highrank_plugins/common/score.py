"""Report a number with what others need to reproduce it, and say which numbers are better."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """Hold a metric's value and its signature, such as sacrebleu's."""

    value: float
    signature: str


# words in the names of metrics, ours and fairseq's; the last known word of a name counts
_BETTER = dict.fromkeys(
    "loss nll ppl perplexity bits bpc error errors wer uer cer ter eer".split(), -1
)
_BETTER |= dict.fromkeys(
    "bleu sacrebleu chrf meteor rouge top similarity accuracy acc correct f1 mcc auc precision "
    "recall map".split(),
    1,
)
_VARIETY = ("code_perplexity", "prob_perplexity")  # of wav2vec's code book: high is not worse


def direction(metric: str) -> int:
    """Return 1 if higher is better, −1 if lower is, 0 if the metric's name does not say."""
    name = metric.lower()
    known = [_BETTER[word] for word in re.findall("f1|[a-z]+", name) if word in _BETTER]
    return known[-1] if known and name not in _VARIETY else 0


def sign(options: Mapping[str, Any]) -> int:
    """Return 1 if a training run's best checkpoint has the highest score, −1 if the lowest.

    The name of --best-checkpoint-metric decides; --maximize-best-checkpoint-metric, if it does not.
    """
    flag = 1 if options.get("maximize_best_checkpoint_metric") else -1
    return direction(metric_of(options)) or flag


def metric_of(options: Mapping[str, Any]) -> str:
    """Return a training run's --best-checkpoint-metric."""
    return options.get("best_checkpoint_metric") or "loss"


def wrong_direction(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the option that would choose the worst checkpoints as the best ones, and a remedy."""
    metric, maximised = metric_of(options), bool(options.get("maximize_best_checkpoint_metric"))
    if direction(metric) == (-1 if maximised else 1):
        if maximised:
            problem = f"would keep the worst checkpoints: a lower {metric} is better; remove it"
            return "maximize_best_checkpoint_metric", problem
        return (
            "best_checkpoint_metric",
            f"{metric}: higher is better; add --maximize-best-checkpoint-metric",
        )
    return None
