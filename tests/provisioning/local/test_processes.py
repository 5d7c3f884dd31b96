"""Scans of /proc between the fork of a process and its exec."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

from provisioning.drivers.local import processes

FORKS = """
import os, sys
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


def test_fork_of_an_agent_is_not_a_second_agent() -> None:
    instance = uuid.uuid4().hex
    markers = {
        "BERTH_INSTANCE": instance,
        "BERTH_WORKSPACE": "ws-1",
        "BERTH_GENERATION": "3",
        "BERTH_ROLE": "agent",
    }
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        env={"PATH": os.environ["PATH"], **markers},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdin
        assert agent.stdout
        child = int(agent.stdout.readline())
        found = {one.pid: one for one in processes.scan(instance)}
        agent.stdin.close()
    assert set(found) == {agent.pid, child}
    assert found[agent.pid].is_agent
    assert not found[child].is_agent
    assert {(one.workspace, one.generation) for one in found.values()} == {("ws-1", 3)}
