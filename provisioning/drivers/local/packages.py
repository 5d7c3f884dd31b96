"""What users install on top of an environment: where it is, and what is in there, read from outside."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provisioning.drivers.local.environment import Environment
from provisioning.types import WorkspaceSpec

FOLDER = (".local", "share", "berth", "packages")
"""Below a home."""
OWN = "minimal"
MAX_PACKAGES = 2000
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Where a system keeps its authorities in one file that sandboxes see."""
_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9._!+]*)\.dist-info")
# Programs that run a user's code in their own process: they begin with the overlay's Python.
IN_OVERLAY = frozenset({"marimo"})


def key(environment: str, name: str, python: str) -> str:
    """The name of an overlay's folder for an environment and a Python such as `python3.12`."""
    return f"{name or environment[:12] or OWN}-{python}"


def overlay(spec: WorkspaceSpec, environment: Environment, *, home: str) -> dict[str, Any] | None:
    """What the agent makes the overlay of (`packages_overlay.make`), or None where there can be none."""
    site = site_of(environment)
    if site is None:
        return None
    folder = "/".join((home, *FOLDER, key(spec.environment, spec.environment_name, site.parent.name)))
    return {
        "folder": folder,
        "python": environment.python,
        "site": str(site),
        "reset": spec.reset_packages,
    }


def site_of(environment: Environment) -> Path | None:
    """The environment's `site-packages`, None where it is no virtual environment."""
    root = Path(environment.python).parent.parent
    if not environment.exists:
        return None
    return next(iter(sorted(root.glob("lib/python3.*/site-packages"))), None)


def certificates() -> dict[str, str]:
    """The variables by which uv and pip believe the authorities that this machine's system does.

    uv brings authorities of its own, as does pip before 24.2: an index of a company would be refused.
    """
    found = {"UV_SYSTEM_CERTS": "1"}
    if bundle := next((path for path in CERTIFICATES if Path(path).is_file()), None):
        found["PIP_CERT"] = bundle
    return found


def variables(made: Mapping[str, Any] | None, *, path: str, jupyter: str) -> dict[str, str]:
    """The app's variables by which programs put packages into the overlay.

    `path` and `jupyter` are PATH and JUPYTER_PATH without it.
    """
    if made is None:
        return {"PATH": path, "JUPYTER_PATH": jupyter}
    folder = made["folder"]
    return {
        "PATH": f"{folder}/bin{os.pathsep}{path}",
        "VIRTUAL_ENV": folder,
        "BERTH_PACKAGES": folder,
        "JUPYTER_PATH": f"{folder}/share/jupyter{os.pathsep}{jupyter}",
    }


def argv_of(argv: tuple[str, ...], made: Mapping[str, Any] | None, environment: Environment) -> list[str]:
    """The app's command: servers are the environment's own, whatever a user has installed on top."""
    if made is None or "/" in argv[0]:
        return list(argv)
    program = Path(environment.bin_dirs[0]) / argv[0]
    if not os.access(program, os.X_OK):
        return list(argv)
    if argv[0] in IN_OVERLAY:
        return [f"{made['folder']}/bin/python", str(program), *argv[1:]]
    return [str(program), *argv[1:]]


def installed(home: Path, name: str) -> list[str]:
    """`name==version` of all that is in an overlay of a home. Its user may have put links anywhere.

    Nothing is followed, and only the names of folders are read.
    """
    descriptor = -1
    found: list[str] = []
    try:
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in (*FOLDER, name, "lib", name.rpartition("-")[2], "site-packages"):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if match := _INFO.fullmatch(entry.name):
                    found.append(f"{match[1]}=={match[2]}"[:300])
                if len(found) >= MAX_PACKAGES:
                    break
    except OSError:
        pass  # there is none
    finally:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return sorted(found, key=str.lower)
