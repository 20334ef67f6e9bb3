"""Start heads and relative positions from checkpoints without them; refuse other heads'."""

import logging

import torch
from torch import Tensor, nn

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head
from highrank_plugins.models.head_from_options import other_head

logger = logging.getLogger(__name__)

# parameters of a softmax; fairseq's Transformers have no bias
SOFTMAX_KEYS = ({"weight"}, {"weight", "bias"})
OUTPUT = "decoder.output_projection."
# of an AWD-LSTM, and of fairseq's decoders
EMBEDDINGS = ("decoder.trunk.embed.weight", "decoder.embed_tokens.weight")
# tables of relative positions
TABLES = (".relative.key_table", ".relative.value_table")
# parameters with a row for each frequent class
_GATES = ("gate_embed", "gate_bias")
_ROUNDING = " (--head-frequent-multiple 1 if it did not round the number of frequent classes)"
_SAME = "use --rel-pos-clip and --rel-pos-in as in its training"


def require_one_matrix(state: dict[str, Tensor]) -> None:
    """Refuse a vocabulary matrix that differs from the embedding, for a model that shares them.

    It would replace the trained embedding in silence. Another shape is refused by torch.
    """
    matrix = state.get(f"{OUTPUT}weight")
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
    """Put initial values of the head where a softmax checkpoint has none.

    Args:
        state_dict: of the whole model, changed in place.
        prefix: of the head's keys.
    Returns:
        the keys that were filled, which are also logged.
    """
    own = head.state_dict()
    saved = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    missing = sorted(own.keys() - saved.keys())
    may_fill = saved.keys() in SOFTMAX_KEYS
    if (missing and not may_fill) or saved.keys() - own.keys():
        there, here = (f"{prefix}{{{', '.join(sorted(names))}}}" for names in (saved, own))
        raise UserError(other_head(there, here))
    for name in saved:
        if saved[name].shape != own[name].shape:
            raise UserError(
                f"{prefix}{name}: {tuple(saved[name].shape)} in the checkpoint, "
                f"{tuple(own[name].shape)} in the model; use the dictionary and the --head… "
                f"options of that training run{_ROUNDING if name in _GATES else ''}"
            )
    for name in missing:
        state_dict[prefix + name] = own[name]
    keys = [prefix + name for name in missing]
    if keys:
        logger.warning("new parameters that the softmax checkpoint lacks: %s", ", ".join(keys))
    return keys


def fill_new_tables(state_dict: dict[str, Tensor], model: nn.Module) -> list[str]:
    """Put zeros where a checkpoint without relative positions has no tables.

    The training run then starts from the function that the checkpoint computes.

    Args:
        state_dict: of the whole model, changed in place.
    Returns:
        the keys that were filled, which are also logged.
    """
    own = _tables(dict(model.named_parameters()))
    saved = _tables(state_dict)
    # by side only: a checkpoint with more layers is pruned later
    for name in saved:
        if name.split(".")[0] not in {key.split(".")[0] for key in own}:
            raise UserError(f"{name}: the checkpoint has relative positions; {_SAME}")
    for name in saved.keys() & own.keys():
        if saved[name].shape != own[name].shape:
            raise UserError(
                f"{name}: {tuple(saved[name].shape)} in the checkpoint, {tuple(own[name].shape)} "
                f"in the model; {_SAME}"
            )
    keys = sorted(own.keys() - saved.keys())
    state_dict.update({key: torch.zeros_like(own[key]) for key in keys})
    if keys:
        logger.warning(
            "new parameters, initially 0, that the checkpoint lacks: %s", ", ".join(keys)
        )
    return keys


def _tables(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state_dict.items() if name.endswith(TABLES)}
