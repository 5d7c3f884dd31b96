from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from provisioning.service import processes
from provisioning.service.environ import MARKER
from provisioning.service.supervisor import LAUNCHER

INSTANCE = "0123456789ab"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program with only these variables, and wait until it is ready."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(code: str = "", **environ: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                sys.executable, "-I", "-S", "-c",
                f"import signal\n{code}\nprint('ready', flush=True)\nwhile True: signal.pause()",
            ],
            env={"PATH": os.environ["PATH"], **environ},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_only_leftover_processes_are_ended(start: Start) -> None:
    ours = start(**{MARKER: f"{INSTANCE}:web"})
    stubborn = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)", **{MARKER: f"{INSTANCE}:control"})
    others = [
        start(**{MARKER: "another-one:web"}),
        start(),
        # A workspace that inherited the variables of the node worker is still a workspace.
        start(**{MARKER: f"{INSTANCE}:node", processes.WORKSPACE_MARKER: "ws-1"}),
    ]
    left = processes.leftovers(INSTANCE)
    assert {(process.pid, process.service) for process in left} == {
        (ours.pid, "web"),
        (stubborn.pid, "control"),
    }
    processes.end(left, INSTANCE, grace_s=0.2)
    assert ours.wait(timeout=10) == -signal.SIGTERM
    assert stubborn.wait(timeout=10) == -signal.SIGKILL
    assert [process.poll() for process in others] == [None, None, None]
    assert processes.leftovers(INSTANCE) == []


def test_reused_pid_of_another_process_is_not_ended(start: Start) -> None:
    stranger = start()
    processes.end([processes.ServiceLeftover(stranger.pid, "web")], INSTANCE, grace_s=0.1)
    assert stranger.poll() is None


def test_ending_a_missing_process_succeeds(start: Start) -> None:
    dead = start(**{MARKER: f"{INSTANCE}:web"})
    dead.kill()
    dead.wait()
    processes.end([processes.ServiceLeftover(dead.pid, "web")], INSTANCE)


def test_process_is_identified_by_pid_and_start_time(start: Start) -> None:
    process = start()
    first = processes.started_at(process.pid)
    assert first is not None and first == processes.started_at(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.started_at(process.pid) is None  # a zombie is inactive
    process.wait()
    assert processes.started_at(process.pid) is None


def test_launcher_ends_its_program_with_its_parent(start: Start) -> None:
    """The parent dies of SIGKILL; the program gets the configured signal."""
    read, write = os.pipe()
    parent = subprocess.Popen(
        [
            sys.executable, "-I", "-S", "-c",
            "import os, subprocess, sys, time\n"
            f"subprocess.Popen([sys.executable, '-I', '-S', {str(LAUNCHER)!r}, str(os.getpid()),"
            " '15', '-', '-',"
            " sys.executable, '-I', '-S', '-c', 'import os, time;"
            f' os.write({write}, b"up"); time.sleep(600)\'], pass_fds=({write},))\n'
            "time.sleep(600)",
        ],
        pass_fds=(write,),
    )  # fmt: skip
    os.close(write)
    assert os.read(read, 2) == b"up"
    parent.kill()
    parent.wait()
    assert os.read(read, 1) == b""  # the last holder of the other end is gone
    os.close(read)


def test_processes_listening_on_ports_are_found(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not processes.port_is_free("127.0.0.1", port)
        assert f"(process {os.getpid()})" in processes.holder_of(port)
    assert processes.port_is_free("127.0.0.1", port)
    assert processes.holder_of(port) == "another program"
