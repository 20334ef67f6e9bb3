"""Starting a head from the checkpoint of a softmax; refusing the checkpoint of another head."""

import logging

from highrank_plugins.heads import Head

logger = logging.getLogger(__name__)

# what a softmax may consist of; fairseq's Transformers have no bias
SOFTMAX_KEYS = ({"weight"}, {"weight", "bias"})


def fill_new_parameters(state_dict: dict, head: Head, prefix: str) -> list[str]:
    """Put initial values of the head where a softmax checkpoint has none.

    Args:
        state_dict: of the whole model, changed in place.
        prefix: of the head's keys.
    Returns:
        the keys that were filled, which are also logged.
    Raises:
        ValueError: the checkpoint has another head, or one of other sizes.
    """
    own = head.state_dict()
    saved = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    missing = sorted(own.keys() - saved.keys())
    may_fill = saved.keys() in SOFTMAX_KEYS
    if (missing and not may_fill) or saved.keys() - own.keys():
        raise ValueError(_other_head(prefix, saved, own))
    for name in saved:
        if saved[name].shape != own[name].shape:
            raise ValueError(
                f"{prefix}{name}: {tuple(saved[name].shape)} in the checkpoint, "
                f"{tuple(own[name].shape)} in the model; use the dictionary and the --head… "
                "options of that training"
            )
    for name in missing:
        state_dict[prefix + name] = own[name]
    keys = [prefix + name for name in missing]
    if keys:
        logger.warning("new parameters, not in the softmax checkpoint: %s", ", ".join(keys))
    return keys


def _other_head(prefix: str, saved: dict, own: dict) -> str:
    return (
        f"the checkpoint has another output layer: {prefix}{{{', '.join(sorted(saved))}}} there, "
        f"{{{', '.join(sorted(own))}}} in the model; use the --head… options of that training, "
        "or start from the checkpoint of a softmax"
    )
