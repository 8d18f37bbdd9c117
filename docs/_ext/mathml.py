"""Formulas as MathML, which browsers render without a script or a font of another host."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.errors import SphinxError
from sphinx.transforms.post_transforms import SphinxPostTransform

_SPACE = '<mspace width="0.17em"/>'  # of functions: log x, 2 log(x), tr V


def _markup(node: nodes.Node, *, block: bool) -> str:
    text = node.astext()
    try:
        found = latex2mathml.tex2mathml(text, as_block=block)
    except MathError as error:
        raise SphinxError(f"{node.source}: formula {text!r}: {error}") from None
    found = re.sub(r"(<mo>&ApplyFunction;</mo>|(?<=<mi>tr</mi>))(?=\s*<m(?!o))", _SPACE, found)
    return re.sub(r"(?<=</m[in]>)(?=\s*<mi>(?:log|exp)</mi>)", _SPACE, found)


def inline(translator: Any, node: nodes.Node) -> None:
    """Write a formula within a line."""
    translator.body.append(_markup(node, block=False))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.Node) -> None:
    """Write a formula on lines of its own."""
    translator.body.append(f'<div class="math">{_markup(node, block=True)}</div>')
    raise nodes.SkipNode


class Punctuation(SphinxPostTransform):
    """Keep a formula on one line with the punctuation after it: browsers break between them."""

    default_priority = 800

    def run(self, **kwargs: Any) -> None:
        """Move punctuation after formulas into an element with the formula."""
        for node in list(self.document.findall(nodes.math)):
            parent, place = node.parent, node.parent.index(node) + 1
            text = parent[place] if place < len(parent) else None
            if isinstance(text, nodes.Text) and (found := re.match(r"[,.;:)]+", text)):
                parent[place] = nodes.Text(text[found.end() :])
                kept = nodes.inline("", "", classes=["formula"])
                node.replace_self(kept)
                kept += [node, nodes.Text(found[0])]


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_post_transform(Punctuation)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
