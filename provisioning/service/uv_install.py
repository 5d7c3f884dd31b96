"""Install a lock file with uv from pip's index: several times faster than pip, which stays the fallback.

https://docs.astral.sh/uv/reference/cli/#uv-pip-install
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

CONFIG_TIMEOUT_S = 60
_ADDRESSES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
}
"""uv's variable for each address setting of pip, and the separator of several addresses.

They are variables because addresses may have a password, which all users of the machine could read on a
command line.
"""
_IGNORED_SETTINGS = frozenset(
    {
        *("cache-dir", "constraint", "default-timeout", "disable-pip-version-check", "no-cache-dir"),
        *("no-input", "no-warn-script-location", "prefer-binary", "progress-bar", "quiet", "retries"),
        *("root-user-action", "timeout", "verbose"),
    }
)
"""Settings of pip that affect neither exact versions with hashes nor anything but its output."""


def pinned(lock: Path) -> str:
    """Return the lines of `lock` that pin uv itself; an empty string if it has none."""
    match = re.search(r"^uv==.*(?:\n[ \t]+.*)*", lock.read_text(), flags=re.MULTILINE)
    return f"{match[0]}\n" if match else ""


def program(python: Path) -> str:
    """Return uv of the environment of `python`, else of this process, else of the system; or ""."""
    own = python.with_name("uv")
    if own.exists():
        return str(own)
    try:
        # Optional: the system may have another uv.
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv") or ""


def command(python: Path, lock: Path, environ: dict[str, str]) -> tuple[list[str], dict[str, str]] | None:
    """Return the command and its environment variables; `None` where only pip can install.

    Only pip can install without uv, or with a setting of pip that uv does not have.
    """
    uv = program(python)
    settings = _pip_settings(python, environ) if uv else None
    if settings is None:
        return None
    variables = {"UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1"}
    for name, value in settings:
        if name in _ADDRESSES:
            variable, separator = _ADDRESSES[name]
            variables[variable] = separator.join(value.split())
        elif name == "cert":
            variables["SSL_CERT_FILE"] = value
        elif name not in _IGNORED_SETTINGS:
            return None
    install = [uv, "pip", "install", "--no-deps", "--require-hashes", "--compile-bytecode"]
    # Like pip, treat all indexes as equal. The hashes of the lock decide which file is installed.
    install += ["--index-strategy", "unsafe-best-match"]
    return [*install, "--python", str(python), "-r", str(lock)], {**environ, **variables}


def _pip_settings(python: Path, environ: dict[str, str]) -> list[tuple[str, str]] | None:
    """Return pip's effective settings from files and variables as (name, value); `None` if unreadable.

    A setting in `:env:` overrides one in `install`, which overrides one in `global`.
    """
    argv = [str(python), "-m", "pip", "config", "list"]
    try:
        listed = subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=CONFIG_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    strength = {"global": 0, "install": 1, ":env:": 2}
    versions: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if section not in strength:
            continue
        try:
            value = str(ast.literal_eval(quoted))
        except (SyntaxError, ValueError):
            return None
        if strength[section] >= versions.get(name, (0, ""))[0]:
            versions[name] = strength[section], value
    return [(name, value) for name, (_, value) in sorted(versions.items())]
