"""Formulas as MathML, by the converter that comes with docutils: no script, no font, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block, *, as_block: bool) -> str:
    """Convert a formula; one that cannot be converted is a warning, which `make docs` takes for an error."""
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        logger.warning("%s in %s", error, node.astext(), location=node)
        return node.astext()


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    writer.body.append(mathml(node, as_block=False))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls where it is wider than the page."""
    writer.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer as "mathml"."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
