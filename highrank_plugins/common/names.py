"""Tell what names mean: options, files, metrics; suggest the name that a mistyped one means."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

# name of an option here → its names in other toolkits
_SYNONYMS = {
    "num_classes": "vocab_size n_classes vocab num_embeddings n_vocab out_features",
    "feature_dim": "hidden_size hidden hidden_dim in_features d_model",
    "embed_dim": "embedding_dim embedding_size",
    "components": "K k experts n_experts num_mixtures n_components",
    "context_scale": "scale",
    "pointwise": "activation function pointwise_options",
    "ignore_index": "ignore_idx padding_idx pad_idx pad_token_id",
    "label_smoothing": "smoothing",
    "lr": "learning_rate",
    "lr_scheduler": "scheduler",
    "max_epoch": "epochs num_epochs num_train_epochs",
    "max_update": "steps max_steps",
    "warmup_updates": "warmup_steps",
    "update_freq": "accumulate accumulate_grad_batches gradient_accumulation_steps",
    "clip_norm": "grad_clip max_grad_norm",
    "max_tokens": "batch_tokens tokens_per_batch",
    "save_dir": "output_dir",
    "share_all_embeddings": "tie_embeddings tie_word_embeddings",
    "head_components": "experts n_experts num_components num_mixtures",
    "beam": "num_beams beam_size",
    "lenpen": "length_penalty",
}


def class_of(layer: object) -> type:
    """Return a layer's own class, without the subclass that torch makes for a parametrisation."""
    return next(c for c in type(layer).__mro__ if c.__module__ != "torch.nn.utils.parametrize")


def layer_name(layer: object) -> str:
    """Return the name under which a layer's class is registered, else the name of the class."""
    return vars(class_of(layer)).get("registered_name", class_of(layer).__name__)


def flag(name: str) -> str:
    """Return `--max-tokens` for `max_tokens`."""
    return f"--{name.replace('_', '-')}"


def option_name(given: str) -> str:
    """Return `max_tokens` for `--max-tokens`."""
    return given.removeprefix("--").replace("-", "_")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'lr'?"`, or "" if no known name is near in letters or meaning."""
    names = list(known)
    spelt = flag if word.startswith("--") else str
    others = (spelt(n) for n, others in _SYNONYMS.items() if option_name(word) in others.split())
    matches = [name for name in others if name in names] or get_close_matches(word, names, n=1)
    matches = matches or get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def distinct_names(paths: Sequence[Path], nameless: str | None = None) -> list[str]:
    """Return paths as short as they are distinct: `ptb/mos`; `nameless` files by their folder."""
    whole = [path.absolute() for path in paths]
    for path in paths:
        if whole.count(path.absolute()) > 1:
            raise ValueError(f"{path} is given twice")
    named = [path.parent if path.name == nameless else path.with_suffix("") for path in whole]
    if len(set(named)) < len(whole):  # only the suffixes differ
        named = [path.parent if path.name == nameless else path for path in whole]
    return next(
        names
        for length in count(1)
        if len(set(names := ["/".join(path.parts[-length:]) for path in named])) == len(named)
    )


@dataclass(frozen=True)
class Score:
    """Hold a metric's value and its signature, such as sacrebleu's."""

    value: float
    signature: str
    certificate: str = ""  # of a perplexity, see `common.certificate.Mass.signature`


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
    """Return the metric of a run's best checkpoint, and 1 if the highest is the best, else −1."""
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
