"""`python docs/make.py`: build the documentation site in ``docs/_build/html`` and check it.

Warnings are errors. Arguments are given to Sphinx, for example ``-E`` to read every page again.
"""

import sys
from pathlib import Path

from check import problems
from sphinx.cmd.build import main

DOCS = Path(__file__).parent
SITE = DOCS / "_build" / "html"

if __name__ == "__main__":
    options = ["--fail-on-warning", "--keep-going", "--jobs", "2", "-b", "html"]
    if status := main([*options, *sys.argv[1:], str(DOCS), str(SITE)]):
        sys.exit(status)
    if found := problems(SITE):
        sys.exit("\n".join(f"error: {line}" for line in found))
