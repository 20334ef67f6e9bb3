"""Start heads and relative positions from checkpoints without them; refuse other heads'."""

import logging

import torch
from torch import Tensor, nn

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.heads.checks import fill_matrix
from highrank_plugins.models.head_from_options import other_head

logger = logging.getLogger(__name__)

# parameters of a softmax; fairseq's Transformers have no bias
SOFTMAX_KEYS = ({"weight"}, {"weight", "bias"})
OUTPUT = "decoder.output_projection."
STORED = "parametrizations.weight.original"  # the parameter of a matrix that is made of one
EMBEDDINGS = ("decoder.trunk.embed.weight", "decoder.embed_tokens.weight")  # AWD-LSTM's, fairseq's
TABLES = (".relative.key_table", ".relative.value_table")
_SAME = "use --rel-pos-clip and --rel-pos-in as in its training"


def require_one_matrix(state: dict[str, Tensor]) -> None:
    """Refuse a vocabulary matrix that differs from the embedding, for a model that shares them.

    It would replace the trained embedding in silence. Another shape is refused by torch.
    """
    names = (f"{OUTPUT}weight", f"{OUTPUT}{STORED}")
    matrix = next((state[name] for name in names if name in state), None)
    for name in EMBEDDINGS:
        embedding = state.get(name)
        if matrix is None or embedding is None or matrix.shape != embedding.shape:
            continue
        # other checks name the NaN of a diverged checkpoint
        finite = matrix.isfinite() & embedding.isfinite()
        if ((matrix != embedding) & finite).any():
            raise UserError(
                "the checkpoint has a vocabulary matrix beside the embedding, and this model has "
                "one for both: give the options of its training (for awd_lstm_lm "
                "--separate-embeddings; for others leave out --share-all-embeddings and "
                "--share-decoder-input-output-embed)"
            )


def fill_new_parameters(state_dict: dict, head: Head, prefix: str) -> list[str]:
    """Put initial values of the head where a softmax checkpoint has none; return the new keys."""
    own = head.state_dict()
    saved = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    may_fill = saved.keys() in SOFTMAX_KEYS
    remedy = "use the dictionary and the --head… options of that training run"
    if may_fill and "weight" not in own:  # its parameters follow from the matrix
        matrix = saved.pop("weight")
        _require_shape(f"{prefix}weight", matrix, head.weight, remedy)
        fill_matrix(head, lambda values: values.copy_(matrix))
        own = head.state_dict()
        del state_dict[f"{prefix}weight"]
    missing = sorted(own.keys() - saved.keys())
    if (missing and not may_fill) or saved.keys() - own.keys():
        there, here = (f"{prefix}{{{', '.join(sorted(names))}}}" for names in (saved, own))
        raise UserError(other_head(there, here))
    for name in saved:
        _require_shape(prefix + name, saved[name], own[name], remedy)
    new = {prefix + name: own[name] for name in missing}
    if new:
        logger.warning("new parameters that the softmax checkpoint lacks: %s", ", ".join(new))
    state_dict.update(new)
    return [*new]


def fill_new_tables(state_dict: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Put zeros where a checkpoint has no tables of relative positions; return the new keys."""
    own, saved = _tables(dict(model.named_parameters())), _tables(state_dict)
    for name in saved:
        if name not in own:
            raise UserError(f"{name}: the checkpoint has relative positions; {_SAME}")
        _require_shape(name, saved[name], own[name], _SAME)
    new = {key: torch.zeros_like(own[key]) for key in sorted(own.keys() - saved.keys())}
    if new:
        logger.warning("new parameters, initially 0, that the checkpoint lacks: %s", ", ".join(new))
    state_dict.update(new)
    return [*new]


def _tables(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state_dict.items() if name.endswith(TABLES)}


def _require_shape(name: str, saved: Tensor, own: Tensor, remedy: str) -> None:
    if saved.shape != own.shape:
        raise UserError(
            f"{name}: {tuple(saved.shape)} in the checkpoint, {tuple(own.shape)} in the model; "
            f"{remedy}"
        )
