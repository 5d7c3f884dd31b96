"""Messages about environments: their limits, and the effect on the digest of a workspace."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from provisioning import messages
from provisioning.environment_messages import (
    MAX_LOG,
    MAX_SOURCE,
    BuildStage,
    EnvironmentBuild,
    EnvironmentBuilt,
    EnvironmentProgress,
    EnvironmentRemoval,
    FailedLine,
    Package,
    SourceKind,
)
from provisioning.types import (
    AgentSpec,
    AppSpec,
    Failure,
    HeldEnvironment,
    NodeInfo,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)

DIGEST = "0123456789abcdef" * 2
BUILD = EnvironmentBuild(
    build="b",
    lease="l",
    python="3.12",
    source_kind=SourceKind.PACKAGES,
    expires_at=1e9,
    deadline_s=600,
    disk_limit_mib=1000,
    source="numpy",
)
SPEC = WorkspaceSpec(
    ref=WorkspaceRef("00000000-0000-0000-0000-000000000001", 1),
    name="n",
    owner="o",
    team="t",
    template="jupyterlab",
    app=AppSpec(argv=("true",)),
    resources=ResourceRequest(cpu_milli=1, memory_mib=1),
    agent=AgentSpec(url="http://127.0.0.1", token="secret"),
    app_token="secret",
)


@pytest.mark.parametrize(
    "value",
    [
        BUILD,
        EnvironmentRemoval(DIGEST),
        EnvironmentProgress("b", "l", BuildStage.DOWNLOADING, 3, 10, 5, "line\n"),
        EnvironmentBuilt(
            "b", "l", DIGEST, "numpy==2", (Package("numpy", "2", 5),), 1, ("python3",), "3.12.1"
        ),
        EnvironmentBuilt(
            "b",
            "l",
            failure=Failure("resolution_failed", "No.", False, "user"),
            failed_line=FailedLine(1, "x"),
        ),
        NodeInfo("n", 1, 1, 1, environments=(HeldEnvironment(DIGEST, 10, ("jupyter-lab",)),)),
    ],
)
def test_sent_messages_arrive(value: Any) -> None:
    assert messages.receive(messages.dump(value), type(value)) == value


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "../../etc"},
        {"digest": "a" * 31},
        {"python": "3"},
        {"python": "3.12; rm"},
        {"python": "/usr/bin/python3"},
        {"source_kind": "shell"},
        {"source": "x" * (MAX_SOURCE + 1)},
        {"deadline_s": 0},
        {"disk_limit_mib": 0},
    ],
)
def test_out_of_range_build_command_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="EnvironmentBuild"):
        messages.load({**messages.dump(BUILD), **change}, EnvironmentBuild)


def test_reported_values_longer_than_columns_are_refused() -> None:
    node = messages.dump(NodeInfo("n", 1, 1, 1))
    held = messages.dump(HeldEnvironment(DIGEST, 1))
    for environments in (
        [held] * 513,
        [{**held, "digest": ""}],
        [{**held, "digest": "x" * 32}],
        [{**held, "size_mib": -1}],
        [{**held, "programs": ["p" * 201]}],
    ):
        with pytest.raises(ValueError, match="NodeInfo"):
            messages.receive({**node, "environments": environments}, NodeInfo)
    with pytest.raises(ValueError, match="EnvironmentProgress"):
        messages.receive(
            {"build": "b", "lease": "l", "stage": "waiting", "log": "x" * (MAX_LOG + 1)}, EnvironmentProgress
        )


def test_workspace_digest_depends_on_the_environment() -> None:
    with_environment = dataclasses.replace(SPEC, environment=DIGEST)
    assert with_environment.digest() != SPEC.digest()
    assert dataclasses.replace(with_environment, reset_packages=True).digest() == with_environment.digest()
