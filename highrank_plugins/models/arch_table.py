"""docs/archs.md, which `highrank archs` prints: all architectures from two short tables."""

from argparse import Namespace
from collections.abc import Iterable

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY

from .archs import TRUNKS, adaptive_options, arch_name, tokens
from .head_options import cli_name

INTRODUCTION = """# Architectures

Printed by `highrank archs`. `transformer_mos_iwslt_de_en` is fairseq's `transformer_iwslt_de_en`
with the head `mos` in place of the output layer; all other options keep fairseq's values. The first
table has the tokens that may stand for `<token>` in the others. Any other pair of structure and
pointwise function is made with `--head-pointwise`."""


def arch_table() -> str:
    """The Markdown document, with the heads and presets that are registered now."""
    tokens_part = ["## Tokens", "", *_table(("token", "structure", "pointwise function"), _heads())]
    parts = [INTRODUCTION, "\n".join(tokens_part), *map(_presets, sorted(TRUNKS))]
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
        off = ", ".join(f"`{cli_name(name)}`" for name in adaptive_options(preset))
        rows.append((f"`{stock}`", f"`{arch_name(stock_model, '<token>', stock)}`", off))
    head = ("fairseq's", "with a head", "switched off with a head")
    return "\n".join([f"## On `{stock_model}`", "", *_table(head, rows)])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
