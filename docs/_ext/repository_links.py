"""Links of the pages to files of the repository that are not pages of the site.

The pages link to such files by relative paths, as on a code host. Here, links to files below
``docs`` become downloads, and the others lead to the repository, ``repository`` in ``conf.py``. Two
files of the repository's root are pages of the site under another name. A link to a page whose text
is the name of the file (``theory.md``) gets the title of the page.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

PAGES = {"CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}


class RepositoryLinks(SphinxTransform):
    """Resolve the links that lead out of the site."""

    default_priority = 10  # before files to download are collected

    def apply(self, **kwargs: Any) -> None:
        """Change the links of one page."""
        links = [
            *self.document.findall(addnodes.pending_xref),
            *self.document.findall(addnodes.download_reference),
        ]
        for link in links:
            if link.get("reftype") == "myst":
                self._resolve(link)

    def _resolve(self, link: Any) -> None:
        is_page = link.get("refdomain") == "doc"
        path, _, anchor = link["reftarget"].partition("#")
        if link.astext().endswith(".md") and not anchor and not link.get("reftargetid"):
            link["refexplicit"] = False
        if not path or (is_page and path in self.env.found_docs):
            return
        anchor = link.get("reftargetid") or anchor
        docs = Path(self.env.srcdir)
        root = docs.parent
        target = (docs / path if is_page else docs / self.env.docname / ".." / path).resolve()
        if not target.exists():
            target = target.with_suffix(".md")
        if not target.exists() or not target.is_relative_to(root):
            return  # reported by MyST
        name = target.relative_to(root)
        if name.with_suffix("").as_posix() in PAGES:
            link["refdomain"], link["reftarget"] = "doc", PAGES[name.stem]
            link["reftargetid"] = anchor or None
        elif target.is_dir() or not target.is_relative_to(docs):
            link.replace_self(self._outside(link, name.as_posix(), anchor))

    def _outside(self, link: Any, name: str, anchor: str) -> nodes.Node:
        if not self.config.repository:
            return nodes.inline("", "", *link.children, classes=["repository-file"])
        address = f"{self.config.repository}/{name}" + (f"#{anchor}" if anchor else "")
        return nodes.reference("", "", *link.children, refuri=address, internal=False)


def setup(app: Any) -> dict[str, bool]:
    """Register the transform."""
    app.add_config_value("repository", "", "env", types=[str])
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
