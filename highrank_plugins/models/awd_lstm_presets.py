"""List sizes and dropouts of the published AWD-LSTMs, by corpus and head structure.

Sources: Merity et al. 2018 for softmax on ptb and wt2; Yang et al. 2018 for MoS and MoC, and for
softmax on 1b and text8. On these two, the paper has no dropout (1b) or gives none (text8).
"""

import logging
from functools import cache

logger = logging.getLogger(__name__)


def _sizes(embed_dim: int, hidden_size: int, last_hidden_size: int | None = None) -> dict:
    """Return the sizes; by default the last layer is as wide as the embeddings."""
    sizes = {"decoder_embed_dim": embed_dim, "decoder_hidden_size": hidden_size}
    if last_hidden_size is not None:
        sizes["decoder_last_hidden_size"] = last_hidden_size
    return sizes


def _rates(dropouti: float, dropouth: float, head_dropout: float = 0.0) -> dict:
    rates = {"dropouti": dropouti, "dropouth": dropouth, "head_dropout": head_dropout}
    return rates | {"dropout": 0.4, "dropoute": 0.1, "wdrop": 0.5, "embed_noise": 0.0}


def _preset(layers: int, softmax: dict, mos: dict, mixtape: dict) -> dict[str, dict]:
    by_structure = {"softmax": softmax, "moc": mos, "mos": mos, "mixtape": mixtape}
    return {name: {"decoder_layers": layers, **own} for name, own in by_structure.items()}


PTB_RATES = _rates(0.4, 0.225, head_dropout=0.29)
WT2_RATES = _rates(0.55, 0.2, head_dropout=0.29)
NO_RATES = dict.fromkeys(PTB_RATES, 0.0)
SEVEN = {"head_components": 7}

PRESETS = {
    # Yang et al. 2019 compare Mixtape and MoS-15 at equal size. Mixtape's gates are small, so its
    # LSTMs must be wider; the paper does not say how wide
    "ptb": _preset(
        layers=3,
        softmax=_sizes(400, 1150) | _rates(0.4, 0.25),
        mos=_sizes(280, 960, 620) | PTB_RATES,
        mixtape=_sizes(280, 1024, 620) | PTB_RATES,
    ),
    "wt2": _preset(
        layers=3,
        softmax=_sizes(400, 1150) | _rates(0.65, 0.2) | {"head_gss_k": 3.0},
        mos=_sizes(300, 1150, 650) | WT2_RATES,
        mixtape=_sizes(300, 1208, 650) | WT2_RATES,
    ),
    "1b": _preset(
        layers=2,
        softmax=_sizes(1024, 1024) | NO_RATES,
        mos=_sizes(900, 1024, 1024) | NO_RATES | SEVEN,
        mixtape=_sizes(900, 1140, 1024) | NO_RATES,
    ),
    "text8": _preset(
        layers=1,
        softmax=_sizes(1024, 1024) | NO_RATES,
        mos=_sizes(510, 910, 910) | NO_RATES | SEVEN,
        mixtape=_sizes(510, 910, 910) | NO_RATES,
    ),
}
# preset of architectures without a corpus in their name
DEFAULT = "ptb"


def preset_options(preset: str, structure: str) -> dict:
    """Return options by name, also of the head; a log line says where none are published."""
    by_structure = PRESETS[preset]
    if structure not in by_structure:
        _say_that_none_are_published(preset, structure)
    return by_structure.get(structure, by_structure["softmax"])


@cache
def _say_that_none_are_published(preset: str, structure: str) -> None:
    logger.info(
        "preset %s: no sizes are published for %s, so the trunk has those of the softmax; "
        "--decoder-hidden-size and related options change them",
        preset,
        structure,
    )
