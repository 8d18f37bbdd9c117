"""The directive ``gallery``: cards of pages with their title, first paragraph and first picture.

Its content is a list of pages, as of a ``toctree``.
"""

from typing import Any

from docutils import nodes
from sphinx.directives.other import TocTree


class gallery(nodes.General, nodes.Element):  # noqa: N801 - names of nodes are in lower case
    """The place of the cards; replaced once all pages are read."""


class Gallery(TocTree):
    """A hidden table of contents, and cards."""

    def run(self) -> list[nodes.Node]:
        """Return both."""
        self.options["hidden"] = None
        wrapper, *others = super().run()
        pages = [page for _, page in next(iter(wrapper.findall())).children[0]["entries"]]
        return [wrapper, *others, gallery(pages=pages)]


def fill(app: Any, doctree: nodes.document, page: str) -> None:
    """Replace the galleries of a page by their cards."""
    for place in list(doctree.findall(gallery)):
        cards = [_card(app, each, page) for each in place["pages"]]
        place.replace_self(nodes.container("", *cards, classes=["gallery"]))


def _card(app: Any, target: str, page: str) -> nodes.container:
    source = app.env.get_doctree(target)
    card = nodes.container(classes=["gallery-card"])
    for picture in list(source.findall(nodes.image))[:1]:
        thumbnail = nodes.image(uri=picture["uri"], candidates={"*": picture["uri"]}, alt="")
        card += nodes.container("", thumbnail, classes=["gallery-picture"])
    address = app.builder.get_relative_uri(page, target)
    title = app.env.titles[target].astext()
    link = nodes.reference("", title, refuri=address, internal=True)
    card += nodes.paragraph("", "", link, classes=["gallery-title"])
    for paragraph in list(source.findall(nodes.paragraph))[:1]:
        card += nodes.paragraph("", paragraph.astext())
    return card


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_node(gallery)
    app.add_directive("gallery", Gallery)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
