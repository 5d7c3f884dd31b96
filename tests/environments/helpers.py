"""Node messages about environment builds, created by hand, and their rows."""

from __future__ import annotations

from typing import Any

from portal.catalog.environments import results, services
from portal.catalog.environments.models import Environment, EnvironmentBuild, EnvironmentVersion
from portal.common.actors import SYSTEM
from provisioning import messages
from provisioning.environment_messages import BuildStage, EnvironmentBuilt, EnvironmentProgress, Package
from provisioning.environment_messages import EnvironmentBuild as BuildCommand
from provisioning.environments.content import digest_of
from provisioning.types import Failure
from tests.broker import Broker

LOCK = "numpy==2.1.0 --hash=sha256:" + "a" * 64 + "\n"


def environment(**fields: Any) -> Environment:
    """An environment created by the portal itself, with its first build requested."""
    arguments: dict[str, Any] = {
        "name": "Vision tools",
        "source_kind": "packages",
        "source": "numpy",
        "python": "3.12",
    }
    arguments |= {"actor": SYSTEM, "team": None, **fields}
    return services.create(**arguments)


def commands(sent: Broker) -> list[BuildCommand]:
    """Remove and return the pending builds."""
    commands = sent.take("node.environment_build")
    return [messages.load(message.kwargs["command"], BuildCommand) for message in commands]


def only(sent: Broker) -> BuildCommand:
    builds = commands(sent)
    assert len(builds) == 1, builds
    return builds[0]


def progress(command: BuildCommand, stage: str = "installing", **fields: Any) -> bool:
    """Report progress; return whether it was accepted."""
    return results.apply_progress(
        EnvironmentProgress(command.build, command.lease, BuildStage(stage), **fields)
    )


def built(command: BuildCommand, *, lock: str = LOCK, **fields: Any) -> bool:
    """Report a finished build; return whether it was accepted."""
    lock = command.lock or lock
    result: dict[str, Any] = {
        "digest": digest_of(lock, command.python),
        "lock": lock,
        "packages": (Package("numpy", "2.1.0", 30_720),),
        "size_mib": 300,
        "programs": ("python3", "jupyter-lab", "marimo"),
        "python_version": f"{command.python}.4",
    }
    return results.apply_built(EnvironmentBuilt(command.build, command.lease, **result | fields))


def failed(command: BuildCommand, code: str, message: str = "It went wrong", **fields: Any) -> bool:
    failure = Failure(code=code, message=message, retryable=True, blame="user")
    return results.apply_built(EnvironmentBuilt(command.build, command.lease, failure=failure, **fields))


def version_of(environment: Environment, number: int = 1) -> EnvironmentVersion:
    return EnvironmentVersion.objects.get(environment=environment, number=number)


def build_of(command: BuildCommand) -> EnvironmentBuild:
    return EnvironmentBuild.objects.get(pk=command.build)


def ready(sent: Broker, **fields: Any) -> Environment:
    """An environment that is on the only node."""
    created = environment(**fields)
    assert built(only(sent))
    created.refresh_from_db()
    return created
