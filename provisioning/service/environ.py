"""What a service gets of the outer environment, and where the program's own files are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages: a checkout, or where an installed Berth lies."""

IN_CHECKOUT = (ROOT / "manage.py").is_file()

FILES = ROOT if IN_CHECKOUT else ROOT / "berth_files"
"""The folder that holds templates, static files and requirements; `setup.py` puts them into the wheel."""

UP = "make up" if IN_CHECKOUT else "berth-server up"
"""What starts Berth, as messages name it."""

INSTALL = f"Run `{UP}`." if IN_CHECKOUT else "Run `pip install --upgrade 'berth[embedded]'`."
"""What to do where a package is missing."""

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
"""It stands in names of queues, files and Redis users, and in patterns of keys."""

MARKER = "BERTH_SERVICE"
"""Environment variable `<instance id>:<service>` by which a later start recognises leftovers."""

# The node plane and the servers get these from our own environment, and nothing else.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
_PASSED_ON_PREFIXES = ("LC_", "NVIDIA_", "CUDA_", "PIP_", "DBUS_")


def home_folder(environ: Mapping[str, str]) -> Path:
    """Where the data is: BERTH_HOME, or `var` of a checkout, or where the user's programs keep theirs."""
    if named := environ.get("BERTH_HOME"):
        return Path(named).expanduser().resolve()
    if IN_CHECKOUT:
        return ROOT / "var"
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(data).expanduser() / "berth").resolve()


def bare_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of the outer environment to run at all: no settings, no secrets."""
    return {
        key: value
        for key, value in environ.items()
        if key in _PASSED_ON or key.startswith(_PASSED_ON_PREFIXES)
    }
