"""Lets Jupyter Server import Berth's extensions, which `jupyter_server_config.d` enables. Sets no options.

PYTHONPATH is not used, because kernels and terminals would inherit it.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "extensions"))  # noqa: PTH100, PTH118, PTH120 - pathlib is slow to import
