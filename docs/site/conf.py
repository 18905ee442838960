# SPDX-License-Identifier: Apache-2.0
"""Settings of Sphinx for the documentation site, and what turns our docstrings into its markup.

`sitebuild` copies this file, with the pages, into the folder that Sphinx reads. Docstrings are written for readers of the code: one
backtick stands for code, and an indented block after an empty line is an example.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lograft import __version__
from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Lograft"
author = "the authors of Lograft"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["sitebuild/**"]
default_role = "py:obj"
highlight_language = "none"
smartquotes = False
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

autoclass_content = "class"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_preprocess_types = True

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"Lograft {__version__}"
html_static_path = ["_static"]
html_css_files = ["lograft.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

_EXAMPLE = re.compile(r"(?:^|\n)\n(?=    \S)")
"""Where an indented block begins after an empty line."""


def _mark_examples(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Make a code block of each indented example. Sections such as `Args:` have no empty line before their indented part."""
    text = "\n".join(lines)
    if _EXAMPLE.search(text):
        lines[:] = _EXAMPLE.sub("\n\n.. code-block:: python\n\n", text).split("\n")


def _drop_constructors(
    app: Sphinx, what: str, name: str, found: object, options: object, signature: str, returns: str
) -> tuple[str, None] | None:
    """Show no arguments of exceptions: programs catch them, and only the SDK makes them."""
    return ("", None) if what == "exception" else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the lexer of shown output, and the handlers of docstrings (before those of napoleon)."""
    app.add_lexer("output", TextLexer)
    app.connect("autodoc-process-docstring", _mark_examples, priority=400)
    app.connect("autodoc-process-signature", _drop_constructors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
