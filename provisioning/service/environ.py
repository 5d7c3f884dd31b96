"""What a service gets of the outer environment, and where the program's own files are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds manage.py, the requirements and the packages."""

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


def bare_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What a process needs of the outer environment to run at all: no settings, no secrets."""
    return {
        key: value
        for key, value in environ.items()
        if key in _PASSED_ON or key.startswith(_PASSED_ON_PREFIXES)
    }
