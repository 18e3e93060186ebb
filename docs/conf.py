"""How Sphinx makes a site of these pages (`make docs`): they stay plain Markdown that reads well without it.

The index's own tables are the table of contents. A link that leaves docs/ (to an example, a source file) becomes the
path in the repository, as the site stands alone.
"""

import posixpath
import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "gpuloom"
author = "the gpuloom authors"
project_copyright = ""
extensions = ["myst_parser"]
exclude_patterns = ["**/*.json"]
html_theme = "furo"
html_title = "gpuloom"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
myst_heading_anchors = 4
nitpicky = True

DOCS = Path(__file__).parent


def contents(index: str) -> str:
    """A table of contents for each shelf of the index, in its order."""
    trees = []
    _, *shelves = index.split("\n## ")
    for shelf in shelves or [index.removeprefix("# ")]:
        pages = re.findall(r"^\| \[[^\]]+\]\(([\w/-]+)\.md\)", shelf, flags=re.MULTILINE)
        lines = ["```{toctree}", ":hidden:", f":caption: {shelf.splitlines()[0]}", "", *pages, "```", ""]
        trees.append("\n".join(lines))
    return "\n".join(trees)


def inside(page: str, text: str) -> str:
    """The text with links that leave docs/ replaced by the path that they lead to."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), match["target"]))
        if re.match(r"(https?|mailto):|#", match["target"]) or target.startswith("docs/"):
            return match[0]
        words = match["words"].strip("`")
        return f"`{target}`" if words in target else f"{match['words']} (`{target}`)"

    return re.sub(r"(?<!!)\[(?P<words>[^\]\n]+)\]\((?P<target>[^)\s]+)\)", link, text)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = inside(page, source[0])
    if page in ("index", "decisions/index"):
        source[0] += "\n" + contents(source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.add_lexer("csv", TextLexer)
