"""The directive ``settings-table``: every setting with its default, from its declaration."""

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

from fldb_flower.settings import entries, flower_entries, hydra_entries
from fldb_flower.settings.entries import Entry


class SettingsTable(Directive):
    """A table with one row for each setting."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        group = nodes.tgroup("", cols=3)
        for width in (25, 15, 60):
            group += nodes.colspec(colwidth=width)
        group += nodes.thead("", _row("setting", "default", "meaning"))
        group += nodes.tbody("", *(_setting(entry) for entry in entries()))
        return [nodes.table("", group, classes=["settings"])]


def _setting(entry: Entry) -> nodes.row:
    names = [entry.dotted] if entry in hydra_entries() else []
    if entry in flower_entries() and entry.kebab not in names:
        names.append(entry.kebab)
    default = str(entry.default)
    is_described = all(choice in entry.help for choice in entry.choices)
    choices = "" if is_described else f" One of {', '.join(entry.choices)}."
    return _row(names, [default] if default else "(empty)", entry.help + choices)


def _row(*cells: str | list[str]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        paragraph = nodes.paragraph()
        if isinstance(cell, str):
            paragraph += nodes.Text(cell)
        else:
            for place, name in enumerate(cell):
                paragraph += [nodes.Text(", ")] * (place > 0) + [nodes.literal(text=name)]
        row += nodes.entry("", paragraph)
    return row


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("settings-table", SettingsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
