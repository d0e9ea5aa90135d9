"""The documentation site: `make docs` builds it from the pages as they stand in the repository.

Pages are plain Markdown, so that the repository's viewer shows them too. What a site needs besides
(a tree of contents, the reference, anchors of codes) is made of them while they are read: `pages`.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import masquerade  # noqa: E402

project = "Masquerade"
author = copyright = "The Masquerade authors"
version = release = masquerade.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "pages"]
root_doc = "README"
source_suffix = dict.fromkeys((".md", ".ipynb", ".py"), "markdown")
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "runs/QUEUE.md"]
include_patterns += ["examples/*.ipynb", "examples/new_method.py", "examples/one_round.py"]
# Folders that are not looked into.
exclude_patterns = [".*", "out", "build", "src", "tests", "bench", "attacks", "runs/*/*"]

myst_heading_anchors = 4
myst_links_external_new_tab = True
# The language of blocks that are not fenced: what is printed, and commands of older pages.
highlight_language = "none"
copybutton_exclude = ".linenos, .gp, .go"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True}
toc_object_entries_show_parents = "hide"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# Docstrings are plain text with names in backticks.
default_role = "code"

html_theme = "furo"
html_title = "Masquerade"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
html_last_updated_fmt = None
