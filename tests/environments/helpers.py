"""What nodes say about builds of environments, by hand, and the rows that it is about."""

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
    """An environment made by the portal itself, whose first build is asked for."""
    arguments: dict[str, Any] = {
        "name": "Vision tools",
        "source_kind": "packages",
        "source": "numpy",
        "python": "3.12",
    }
    arguments |= {"actor": SYSTEM, "team": None, **fields}
    return services.create(**arguments)


def commands(sent: Broker) -> list[BuildCommand]:
    """Builds on their way to nodes; they are taken off."""
    found = sent.take("node.environment_build")
    return [messages.load(message.kwargs["command"], BuildCommand) for message in found]


def only(sent: Broker) -> BuildCommand:
    found = commands(sent)
    assert len(found) == 1, found
    return found[0]


def progress(command: BuildCommand, stage: str = "installing", **fields: Any) -> bool:
    """A sign of life; whether it counted."""
    return results.apply_progress(
        EnvironmentProgress(command.build, command.lease, BuildStage(stage), **fields)
    )


def built(command: BuildCommand, *, lock: str = LOCK, **fields: Any) -> bool:
    """The answer of a node that has built it; whether it counted."""
    lock = command.lock or lock
    said: dict[str, Any] = {
        "digest": digest_of(lock, command.python),
        "lock": lock,
        "packages": (Package("numpy", "2.1.0", 30_720),),
        "size_mib": 300,
        "programs": ("python3", "jupyter-lab", "marimo"),
        "python_version": f"{command.python}.4",
    }
    return results.apply_built(EnvironmentBuilt(command.build, command.lease, **said | fields))


def failed(command: BuildCommand, code: str, message: str = "It went wrong", **fields: Any) -> bool:
    failure = Failure(code=code, message=message, retryable=True, blame="user")
    return results.apply_built(EnvironmentBuilt(command.build, command.lease, failure=failure, **fields))


def version_of(made: Environment, number: int = 1) -> EnvironmentVersion:
    return EnvironmentVersion.objects.get(environment=made, number=number)


def build_of(command: BuildCommand) -> EnvironmentBuild:
    return EnvironmentBuild.objects.get(pk=command.build)


def ready(sent: Broker, **fields: Any) -> Environment:
    """An environment that is on the one node there is."""
    made = environment(**fields)
    assert built(only(sent))
    made.refresh_from_db()
    return made
