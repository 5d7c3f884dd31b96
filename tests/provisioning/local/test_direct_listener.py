"""Notebooks that accept the connections of the workspace socket themselves, and apps with a relay."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from jupyter_support import LARGE, LIMIT_S, Jupyter, at_rest, counts_a_file, heartbeats, until
from local_support import Pool
from proc_support import command

from provisioning.drivers.local import processes
from provisioning.drivers.local.processes import parent_of
from provisioning.drivers.local.sandbox import AGENT_PROGRAM_PATH
from tests.node_sockets import SocketConnection, plug

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.usefixtures("sandbox")]


def agents(jupyter: Jupyter) -> list[int]:
    """Return the agent of the workspace and its relay, a fork with the same command."""
    folder = jupyter.pool.driver._dir(jupyter.spec.ref)
    owned = processes.scan(jupyter.pool.driver.instance, folder.name, spares=folder.claimed())
    words = [b"-I", b"-S", AGENT_PROGRAM_PATH.encode()]
    found = [one.pid for one in owned if command(one.pid).split(b"\0")[1:4] == words]
    return sorted(found, key=lambda pid: parent_of(pid) in found)


def test_prepared_notebook_has_no_relay(notebook_pool: Pool) -> None:
    jupyter = Jupyter(notebook_pool, prepared=True)
    assert len(agents(jupyter)) == 1
    assert jupyter.value(jupyter.kernel(), "6 * 7") == 42
    content = os.urandom(1 << 20) * (LARGE >> 20)
    (jupyter.home / "large.bin").write_bytes(content)
    connection = SocketConnection(jupyter.socket, timeout_s=LIMIT_S)
    connection.request("GET", "/files/large.bin", headers={"Authorization": f"Bearer {jupyter.token}"})
    answer = connection.getresponse()
    assert hashlib.sha256(answer.read()).digest() == hashlib.sha256(content).digest()
    connection.close()


def test_plainly_started_notebook_has_a_relay(notebook_pool: Pool) -> None:
    jupyter = Jupyter(notebook_pool, prepared=False)
    assert len(agents(jupyter)) == 2
    assert "version" in jupyter.call("GET", "/api")


def test_socket_requests_without_a_valid_token_are_refused(notebook_pool: Pool) -> None:
    jupyter = Jupyter(notebook_pool, prepared=True)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        connection = SocketConnection(jupyter.socket, timeout_s=LIMIT_S)
        connection.request("GET", "/api/contents", headers=headers)
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.thorough("waits for heartbeats; `make test` has connections")
def test_heartbeats_count_connections_accepted_by_the_notebook(notebook_pool: Pool) -> None:
    with heartbeats(notebook_pool, "connections") as seen:
        jupyter = Jupyter(notebook_pool, prepared=True, heartbeat_s=1)
        before = at_rest(seen)
        held = [plug(jupyter.socket) for _ in range(5)]
        until(lambda: seen.get(timeout=LIMIT_S) == before + 5, what="five more are counted")
        for one in held:
            one.close()
        until(lambda: seen.get(timeout=LIMIT_S) == before, what="none of them is counted any more")


@pytest.mark.thorough("waits for heartbeats; `make test` has connections")
@pytest.mark.parametrize("prepared", [True, False])
def test_heartbeats_count_socket_traffic(notebook_pool: Pool, prepared: bool) -> None:
    """Counted by the notebook or its relay; requests of the agent are not counted."""
    with heartbeats(notebook_pool, "traffic_bytes") as seen:
        jupyter = Jupyter(notebook_pool, prepared=prepared, heartbeat_s=1)
        assert jupyter.value(jupyter.kernel(), "6 * 7") == 42
        counts_a_file(jupyter, seen)


def test_user_processes_do_not_inherit_the_socket(notebook_pool: Pool) -> None:
    jupyter = Jupyter(notebook_pool, prepared=True)
    links = "[os.readlink(e.path) for e in [*os.scandir('/proc/self/fd')] if os.path.lexists(e.path)]"
    ends = jupyter.value(jupyter.kernel(), links)
    (agent,) = agents(jupyter)
    arguments = command(agent).split(b"\0")
    number = int(arguments[arguments.index(b"--unclaimed") + 3])
    held = str(Path(f"/proc/{agent}/fd/{number}").readlink())
    assert held.startswith("socket:") and held not in ends
