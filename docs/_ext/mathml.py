"""Formulas as MathML, which browsers render without a script or a font of another host."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.errors import SphinxError


def _markup(node: nodes.Node, *, block: bool) -> str:
    text = node.astext()
    try:
        return latex2mathml.tex2mathml(text, as_block=block)
    except MathError as error:
        raise SphinxError(f"{node.source}: formula {text!r}: {error}") from None


def inline(translator: Any, node: nodes.Node) -> None:
    """Write a formula within a line."""
    translator.body.append(_markup(node, block=False))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Node) -> None:
    """Write a formula on lines of its own."""
    translator.body.append(f'<div class="math">{_markup(node, block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
