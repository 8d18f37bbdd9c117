"""The page for people, and the Content-Security-Policy of every reply."""

from __future__ import annotations

from importlib.resources import files

from fldb_flower.system.pages import digest

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The policy of replies that are not pages."""
DOCS = (  # Swagger UI starts with an inline script; the page contains no data but /openapi.json
    f"{NOTHING}; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
)
"""The policy of the API's description."""


def load_page() -> tuple[str, str]:
    """Return the page with its style and script inline, and the policy that allows only those."""
    folder = files("clients") / "page"
    text = (folder / "index.html").read_text("utf-8")
    digests = []
    for name in ("js", "css"):
        part = (folder / f"page.{name}").read_text("utf-8")
        text = text.replace(f"{{{{{name}}}}}", part)
        digests.append(digest(part))
    script, style = digests
    return text, (
        f"{NOTHING}; script-src '{script}'; style-src '{style}'; connect-src 'self';"
        " img-src data: https:"  # the images that applications may send
    )
