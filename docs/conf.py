"""How the pages become a site: `make docs` builds it with warnings as errors and runs the tutorials."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments.lexers.special import TextLexer

import unitvar

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "unitvar"
author = "The unitvar authors"
copyright = author
release = unitvar.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "_mathml"]

# GitHub shows the same files, so only what reads well in both places: plain Markdown, dollar maths, heading anchors.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

nb_execution_mode = "force"  # a tutorial that does not run is an error, whatever ran before
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature shows names and defaults; the docstring says what may be passed
autodoc_mock_imports = ["lightning", "transformers"]  # the adapters' pages do not need the frameworks
napoleon_use_rtype = False

html_theme = "furo"
html_title = "unitvar"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # no script and no network: browsers draw it themselves
html_copy_source = False
html_show_sphinx = False


def unbroken(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Keep a number, its interval, its unit and its star on one line of a table."""
    for entry in doctree.findall(nodes.entry):
        for text in list(entry.findall(nodes.Text)):
            joined = re.sub(r" (?=[±%→*])|(?<=[±→]) ", "\N{NO-BREAK SPACE}", text)
            if joined != text:
                text.parent.replace(text, nodes.Text(joined))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what the pages need beyond the extensions."""
    app.connect("doctree-resolved", unbroken)
    app.add_lexer("output", TextLexer)  # blocks that the tests compare with what the code before them prints
    return {"parallel_read_safe": True}
