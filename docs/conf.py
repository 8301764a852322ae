"""Settings of the documentation site: `make docs`."""

from typing import Any

from dicl_flow import __version__

project = "DICL-Flow"
copyright = "The DICL-Flow maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 3  # links to headings, as GitHub makes them

suppress_warnings = ["myst.header"]  # the tables that `ablate` writes start with a small heading

default_role = "code"  # docstrings write names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
# Only our public names have a page to link to: the site is built without a network.
nitpick_ignore_regex = [("py:.*", r"(?!dicl_flow\.\w+$).*")]

smartquotes = False  # "auto" in a docstring is a value to type

html_theme = "furo"
html_title = f"DICL-Flow {version}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


def shorten_arrays(*event: Any) -> tuple[str, str] | None:
    """Write `ndarray` in a signature, without the parameters of the alias `NDArray[Any]`."""
    signature, result = event[-2:]
    if signature is None:
        return None
    long = "~numpy.ndarray[~typing.Any, ~numpy.dtype[~typing.Any]]"
    return signature.replace(long, "~numpy.ndarray"), (result or "").replace(long, "~numpy.ndarray")


def setup(app: Any) -> None:
    """Connect the hook above."""
    app.connect("autodoc-process-signature", shorten_arrays)
