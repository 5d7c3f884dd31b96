"""Packages that users install on top of an environment: location and contents, read from outside."""

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
"""Path below a home."""
OWN = "minimal"
MAX_PACKAGES = 2000
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Files with all certificate authorities of the system, visible in sandboxes."""
_INFO = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9._!+]*)\.dist-info")
# These run user code in their own process, so they start with the overlay's Python.
IN_OVERLAY = frozenset({"marimo"})


def key(environment: str, name: str, python: str) -> str:
    """Return the folder name of an overlay for an environment and a Python such as `python3.12`."""
    return f"{name or environment[:12] or OWN}-{python}"


def overlay(spec: WorkspaceSpec, environment: Environment, *, home: str) -> dict[str, Any] | None:
    """Return the agent's parameters for the overlay (`packages_overlay.make`), or None if unsupported."""
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
    """Return the environment's `site-packages`; None if it is not a virtual environment."""
    root = Path(environment.python).parent.parent
    if not environment.exists:
        return None
    return next(iter(sorted(root.glob("lib/python3.*/site-packages"))), None)


def certificates() -> dict[str, str]:
    """Return variables that make uv and pip trust the system's certificate authorities.

    uv and pip before 24.2 bundle their own, so they would reject a company's index.
    """
    env = {"UV_SYSTEM_CERTS": "1"}
    if bundle := next((path for path in CERTIFICATES if Path(path).is_file()), None):
        env["PIP_CERT"] = bundle
    return env


def variables(overlay: Mapping[str, Any] | None, *, path: str, jupyter: str) -> dict[str, str]:
    """Return the app's variables that direct installations into the overlay.

    `path` and `jupyter` are PATH and JUPYTER_PATH without it.
    """
    if overlay is None:
        return {"PATH": path, "JUPYTER_PATH": jupyter}
    folder = overlay["folder"]
    return {
        "PATH": f"{folder}/bin{os.pathsep}{path}",
        "VIRTUAL_ENV": folder,
        "BERTH_PACKAGES": folder,
        "JUPYTER_PATH": f"{folder}/share/jupyter{os.pathsep}{jupyter}",
    }


def argv_of(argv: tuple[str, ...], overlay: Mapping[str, Any] | None, environment: Environment) -> list[str]:
    """Return the app's command. Servers run from the environment itself, not from user packages."""
    if overlay is None or "/" in argv[0]:
        return list(argv)
    program = Path(environment.bin_dirs[0]) / argv[0]
    if not os.access(program, os.X_OK):
        return list(argv)
    if argv[0] in IN_OVERLAY:
        return [f"{overlay['folder']}/bin/python", str(program), *argv[1:]]
    return [str(program), *argv[1:]]


def installed(home: Path, name: str) -> list[str]:
    """Return `name==version` of all packages in an overlay. Links by the user are not followed.

    Reads only folder names.
    """
    descriptor = -1
    packages: list[str] = []
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
                    packages.append(f"{match[1]}=={match[2]}"[:300])
                if len(packages) >= MAX_PACKAGES:
                    break
    except OSError:
        pass  # no overlay
    finally:
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return sorted(packages, key=str.lower)
