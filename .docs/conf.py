"""Sphinx's settings for the site that `make docs` builds from the sources of `sources.py`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from perfkit import __version__

project = "perfkit"
author = "the perfkit authors"
project_copyright = "the perfkit authors, Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

# Lessons are shown as they were saved: building the site measures nothing.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 3
myst_url_schemes = ["http", "https", "mailto"]
# the lines to take home have "…" where the reader's own code goes
suppress_warnings = ["misc.highlighting_failure"]

# not installed here: a callback is documented without its trainer
autodoc_mock_imports = ["lightning", "pytorch_lightning", "transformers"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes are a list of their class, not entries of the contents
napoleon_custom_sections = ["Shapes", "Units"]
html_theme = "furo"
html_title = f"perfkit {version}"
html_static_path = ["static"]
html_css_files = ["perfkit.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = re.escape(">>> ")


def setup(app: Any) -> None:
    """What a result is made with is not shown; ``np.bool_`` in a type is no link."""

    def made_by_functions(_app: Any, _what: str, _name: str, thing: Any, *_: Any) -> Any:
        return ("", None) if dataclasses.is_dataclass(thing) else None

    def escape(*given: Any) -> None:
        lines = given[-1]
        lines[:] = [line.replace("np.bool_", "np.bool") for line in lines]

    app.connect("autodoc-process-signature", made_by_functions)
    app.connect("autodoc-process-docstring", escape, priority=900)  # after napoleon
