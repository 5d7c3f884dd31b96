"""Lets Jupyter Server import Berth's extensions, which `jupyter_server_config.d` names. It sets nothing.

Not by PYTHONPATH: kernels and terminals would have it, too.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "extensions"))  # noqa: PTH100, PTH118, PTH120 - pathlib takes long to import
