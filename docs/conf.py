"""Configure the documentation site; `bash scripts/docs.sh` builds it."""

import logging
import os
import sys
import tempfile
from pathlib import Path

import highrank_plugins

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "highrank_plugins"
author = "the highrank_plugins authors"
version = release = highrank_plugins.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_docstrings",
    "generated_pages",
    "mathml",
]
exclude_patterns = ["records"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"  # pages with code cells are computed whenever the site is built
nb_execution_raise_on_error = True
nb_execution_timeout = 120
# the pages' kernels run locally: hide their advice on networks and their line per page
_settings = tempfile.TemporaryDirectory(prefix="highrank-docs-")
os.environ["IPYTHONDIR"] = _settings.name
_kernel = Path(_settings.name, "profile_default", "ipython_kernel_config.py")
_kernel.parent.mkdir()
_kernel.write_text('get_config().IPKernelApp.log_level = "ERROR"\n', encoding="utf-8")
logging.getLogger("traitlets").setLevel(logging.WARNING)

autodoc_typehints = "signature"
autodoc_member_order = "bysource"

smartquotes = False  # --option must stay --option

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "highrank_plugins"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
