"""`python docs/make.py`: build the documentation site in ``docs/_build/html``.

Warnings are errors. Arguments are given to Sphinx, for example ``-E`` to read every page again.
"""

import sys
from pathlib import Path

from sphinx.cmd.build import main

DOCS = Path(__file__).parent

if __name__ == "__main__":
    options = ["--fail-on-warning", "--keep-going", "--jobs", "2", "-b", "html"]
    sys.exit(main([*options, *sys.argv[1:], str(DOCS), str(DOCS / "_build" / "html")]))
