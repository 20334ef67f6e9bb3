"""Render equations as MathML, which browsers show without a script from a network."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def render(writer: Any, node: nodes.Node) -> None:
    block = isinstance(node, nodes.math_block)
    writer.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (render, None), (render, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
