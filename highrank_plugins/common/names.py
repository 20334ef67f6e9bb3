"""Format names of options and files, and suggest the name that a mistyped one means."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import count
from pathlib import Path

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
    """Return `"; did you mean 'lr'?"`, or nothing if no known name is near in letters or meaning.

    `--learning-rate` suggests `--lr`, and `learning_rate` suggests `lr`.
    """
    names = list(known)
    spelt = flag if word.startswith("--") else str
    others = (spelt(n) for n, others in _SYNONYMS.items() if option_name(word) in others.split())
    matches = [name for name in others if name in names] or get_close_matches(word, names, n=1)
    matches = matches or get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def distinct_names(paths: Sequence[Path], nameless: str | None = None) -> list[str]:
    """Return paths without suffix, cut to as few folders as keep them distinct: `ptb/mos`.

    The suffix stays where nothing else differs. A file `nameless` has the name of its folder.
    """
    whole = [path.absolute() for path in paths]
    for path in paths:
        if whole.count(path.absolute()) > 1:
            raise ValueError(f"{path} is given twice")
    named = [path.parent if path.name == nameless else path.with_suffix("") for path in whole]
    if len(set(named)) < len(whole):
        named = [path.parent if path.name == nameless else path for path in whole]
    return next(
        names
        for length in count(1)
        if len(set(names := ["/".join(path.parts[-length:]) for path in named])) == len(named)
    )
