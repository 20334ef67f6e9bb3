"""Write docs/reference/archs.md, which `highrank list archs` prints: all architectures."""

from argparse import Namespace
from collections.abc import Iterable

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY

from highrank_plugins.common.names import flag
from highrank_plugins.heads.tokens import tokens
from highrank_plugins.models.archs import TRUNKS, adaptive_options, arch_name
from highrank_plugins.models.awd_lstm_lm import arch_name as awd_lstm_name
from highrank_plugins.models.awd_lstm_options import fill
from highrank_plugins.models.awd_lstm_presets import DEFAULT, PRESETS

INTRODUCTION = """# Architectures

Printed by `highrank list archs`. `transformer_mos_iwslt_de_en` is fairseq's
`transformer_iwslt_de_en` with the head `mos` in place of the output layer; all other options keep
fairseq's values. The first table has the names that may stand for `<layer>` in the others. Any
other pair of structure and pointwise function is made with `--head-pointwise`."""
AWD_LSTM = f"""## On `awd_lstm_lm`

The AWD-LSTM has the papers' sizes and dropouts for Penn Treebank, WikiText-2, One Billion Word and
text8. They depend on the structure of the head; structures that are not listed use the values of
`softmax`. `{awd_lstm_name("<layer>")}` is the same as `{awd_lstm_name("<layer>", DEFAULT)}`.
The embeddings are also the vocabulary matrix, unless `--separate-embeddings` is given."""
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
    layers_part = ["## Layers", "", *_table(("layer", "structure", "pointwise function"), _heads())]
    parts = [INTRODUCTION, "\n".join(layers_part), _awd_lstm(), *map(_presets, sorted(TRUNKS))]
    return "\n\n".join(parts) + "\n"


def _heads() -> list[tuple[str, ...]]:
    return [
        (f"`{token}`", f"`{head['head']}`", f"`{head.get('head_pointwise', 'identity')}`")
        for token, head in sorted(tokens().items())
    ]


def _presets(stock_model: str) -> str:
    rows = []
    for stock in sorted(ARCH_MODEL_INV_REGISTRY[stock_model]):
        preset = Namespace()
        ARCH_CONFIG_REGISTRY[stock](preset)
        off = ", ".join(f"`{flag(name)}`" for name in adaptive_options(preset))
        rows.append((f"`{stock}`", f"`{arch_name(stock_model, '<layer>', stock)}`", off))
    head = ("fairseq's", "with a head", "switched off with a head")
    return "\n".join([f"## On `{stock_model}`", "", *_table(head, rows)])


def _awd_lstm() -> str:
    head = ("architecture", "structure", *AWD_LSTM_COLUMNS)
    rows = [
        _awd_lstm_row(preset, structure)
        for preset, by_structure in PRESETS.items()
        for structure in by_structure
    ]
    return "\n".join([AWD_LSTM, "", *_table(head, rows)])


def _awd_lstm_row(preset: str, structure: str) -> tuple[str, ...]:
    settings = Namespace(head=structure)
    fill(settings, preset, head={})
    values = [getattr(settings, name) for name in AWD_LSTM_COLUMNS.values()]
    cells = ["" if value is None else str(value) for value in values]
    return f"`{awd_lstm_name('<layer>', preset)}`", f"`{structure}`", *cells


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
