"""Write docs/reference/archs.md, which `highrank list archs` prints: all architectures."""

from argparse import Namespace
from collections.abc import Iterable

from fairseq.models import ARCH_CONFIG_REGISTRY

from highrank_plugins.common.names import flag
from highrank_plugins.heads import tokens
from highrank_plugins.models.archs import TRUNKS, adaptive_options
from highrank_plugins.models.awd_lstm_lm import DEFAULT, PRESETS, fill
from highrank_plugins.models.head_options import AXES

INTRODUCTION = """# Architectures

Printed by `highrank list archs`. `transformer_mos_iwslt_de_en` is fairseq's
`transformer_iwslt_de_en` with the head `mos` in place of the output layer; all other options keep
fairseq's values. The first table has the names that may stand for `<layer>` in the others. Any
other choice of structure, pointwise function and vocabulary matrix is made with `--head-pointwise`
and `--head-vocabulary`."""
AWD_LSTM = f"""## On `awd_lstm_lm`

The AWD-LSTM has the papers' sizes and dropouts for Penn Treebank, WikiText-2, One Billion Word and
text8. They depend on the structure of the head; structures that are not listed use the values of
`softmax`. `awd_lstm_lm_<layer>` is the same as `awd_lstm_lm_<layer>_{DEFAULT}`.
The embeddings are also the vocabulary matrix, unless `--separate-embeddings` is given."""
LAYER_COLUMNS = ("layer", "structure", "pointwise function", "vocabulary matrix")
AWD_LSTM_COLUMNS = {
    "embeddings": "decoder_embed_dim",
    "LSTMs": "decoder_layers",
    "units": "decoder_hidden_size",
    "of the last": "decoder_last_hidden_size",
    **{f"`{name}`": name for name in ("dropoute", "dropouti", "dropouth", "dropout", "wdrop")},
    "K": "head_components",
    "`head-dropout`": "head_dropout",
}


def arch_table() -> str:
    """Return the Markdown document, with the heads and presets that are registered now."""
    layers = [
        (f"`{token}`", *(f"`{head.get(axis.option, axis.default)}`" for axis in AXES))
        for token, head in sorted(tokens().items())
    ]
    columns = ("architecture", "structure", *AWD_LSTM_COLUMNS)
    awd_lstm = [_awd_lstm_row(preset, s) for preset in PRESETS for s in PRESETS[preset]]
    parts = [
        INTRODUCTION,
        _section("## Layers", LAYER_COLUMNS, layers),
        _section(AWD_LSTM, columns, awd_lstm),
    ]
    columns = ("fairseq's", "with a head", "switched off with a head")
    for trunk, presets in sorted(TRUNKS.items()):
        if trunk in presets.values():  # fairseq's
            rows = [_preset_row(trunk, *item) for item in sorted(presets.items())]
            parts.append(_section(f"## On `{trunk}`", columns, rows))
    return "\n\n".join(parts) + "\n"


def _preset_row(trunk: str, ending: str, stock: str) -> tuple[str, ...]:
    config = Namespace()
    ARCH_CONFIG_REGISTRY[stock](config)
    off = ", ".join(f"`{flag(name)}`" for name in adaptive_options(config))
    return f"`{stock}`", f"`{trunk}_<layer>{ending}`", off


def _awd_lstm_row(preset: str, structure: str) -> tuple[str, ...]:
    settings = Namespace(head=structure)
    fill(settings, preset, head={})
    values = [getattr(settings, name) for name in AWD_LSTM_COLUMNS.values()]
    cells = ["" if value is None else str(value) for value in values]
    return f"`awd_lstm_lm_<layer>_{preset}`", f"`{structure}`", *cells


def _section(text: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    table = [f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *rows)]
    return "\n".join([text, "", *table])
