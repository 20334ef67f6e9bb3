"""Report a number and its signature, and say which numbers are better; tell pieces of words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Score:
    """Hold a metric's value and its signature, such as sacrebleu's.

    A perplexity may have a certificate, too, see `common.certificate.Mass.signature`.
    """

    value: float
    signature: str
    certificate: str = ""


# words in the names of metrics, ours and fairseq's; two that contradict each other say nothing
_LOWER = """loss nll ppl perplexity bits bpc bpw err error errors wer uer cer ter eer mse rmse mae
    kl kld"""
_HIGHER = """bleu sacrebleu bleurt chrf meteor nist rouge rougel rougelsum cider spice sari comet
    bertscore similarity accuracy acc correct f1 mcc em match auc auroc auprc precision recall
    map mrr ndcg iou miou pearson spearman kendall correlation kappa uas las psnr ssim"""
_BETTER = dict.fromkeys(_LOWER.split(), -1) | dict.fromkeys(_HIGHER.split(), 1)
# of wav2vec's code book, and our divergence between contexts: high is not worse
_VARIETY = re.compile("(code|prob)_perplexity|(train|valid|test)_kld")
# words after which a name says nothing: a negated or inverted number, a difference, a place
_TURNED = set(
    """no not non self neg negative inv inverse minus reduction gap diff difference delta
    improvement gain change ratio at""".split()
)
NO_QUALITY = """wps ups wpb bsz num_updates lr gnorm clip loss_scale train_wall gb_free wall epoch
    total n_total ntokens nsentences sample_size""".split()  # what fairseq logs besides quality


def direction(metric: str) -> int:
    """Return 1 if higher is better, −1 if lower is, 0 if the metric's name does not say."""
    name = metric.lower()
    words = re.findall("f1|[a-z]+", name)
    if _VARIETY.fullmatch(name) or _TURNED.intersection(words) or name.startswith("1-"):
        return 0
    if name.endswith("loss"):
        return -1
    signs = {_BETTER[word] for word in words if word in _BETTER} or {int("top" in words)}
    return signs.pop() if len(signs) == 1 else 0


def criterion(options: Mapping[str, Any]) -> tuple[str, int]:
    """Return what chooses a run's best checkpoint: its metric, and 1 if the highest is the best.

    The direction is −1 if the lowest is. The flag decides where the metric's name does not say.
    """
    metric = options.get("best_checkpoint_metric") or "loss"
    flag = 1 if options.get("maximize_best_checkpoint_metric") else -1
    return metric, direction(metric) or flag


def reversed_flag(options: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the option that makes the worst checkpoint the best one, and a remedy."""
    metric, sign = criterion(options)
    if bool(options.get("maximize_best_checkpoint_metric")) == (sign > 0):
        return None
    if sign > 0:
        remedy = "add --maximize-best-checkpoint-metric"
        return "best_checkpoint_metric", f"{metric}: higher is better; {remedy}"
    return "maximize_best_checkpoint_metric", f"would keep the worst: lower {metric} is better"


# left in text that nobody joined by SentencePiece, subword-nmt, WordPiece, GPT-2, others and Moses
PIECES = (
    r"▁\w", r"@@(?!\S)", r"(?<=\S )##\w", "</w>|[￭￨]", r"<0x[0-9A-F]{2}>",
    r"(?<!\S)@[-,.:/]@(?!\S)",  # below: Maltese has the letters Ġ and Ċ, too
    r"(?<!\S)Ġ\S+\s+(?:\S+\s+)?Ġ|(?<!\S)Ċ(?!\S)|[a-z]Ġ\w",
)  # fmt: skip


def is_piece(word: str) -> bool:
    """Whether a word of a dictionary has a mark of pieces."""
    return any(re.search(pattern, f"x {word} {word}") for pattern in PIECES)
