"""Jobs: foreground, background and orphaned commands of shells, and idle shells."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioning.agent.program import jobs as jobs_module
from provisioning.agent.program import marimo, observing, servers
from provisioning.agent.program.app import App
from provisioning.agent.program.app_listener import AppListener
from provisioning.agent.program.config import complete
from provisioning.agent.program.log import Log
from provisioning.agent.program.processes import descendants, process_table
from provisioning.agent.program.terminals import terminals_of
from tests.instance import eventually
from tests.ports import free_port

APP = """
import os, pty, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

pid, terminal = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])


def drain():
    while os.read(terminal, 4096):
        pass


threading.Thread(target=drain, daemon=True).start()
os.write(terminal, sys.argv[2].encode() + b"\\n")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args):
        pass


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def jobs_seen(portal, configuration, start, command: str, expected: int) -> int:
    """Return the number of jobs in heartbeats once it equals `expected`, else the last number."""
    configuration(argv=["python3", "-c", APP, "{port}", command])
    start()
    portal.next("ready")
    seen = -1
    for _ in range(300):
        seen = portal.next("heartbeat")[1]["activity"]["jobs"]
        if seen == expected:
            break
    return seen


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sleep 600", 1),
        ("sleep 600 &", 1),
        ("sleep 600 & sleep 601 & sleep 602", 3),
        ("cat | sort | uniq", 1),
        ("nohup sleep 600 >/dev/null 2>&1 & exit", 1),
        ("setsid -f sleep 600", 1),
    ],
)
def test_computing_and_waiting_commands_are_counted(portal, configuration, start, command, expected):
    assert jobs_seen(portal, configuration, start, command, expected) == expected


def test_idle_shell_is_not_a_job(portal, configuration, start):
    assert jobs_seen(portal, configuration, start, "true", 0) == 0
    assert {portal.next("heartbeat")[1]["activity"]["jobs"] for _ in range(10)} == {0}


APP_PID, AGENT_PID = 5, 2
KERNEL, MARIMO_KERNEL = b"python\0-m\0ipykernel_launcher\0", b"python\0-c\0from multiprocessing.spawn\0"


@pytest.mark.parametrize(
    ("command", "jobs"),
    [
        (b"sleep\x009999\0", 1),
        (b"python\0train.py\0", 1),
        # Pool workers wait beside their kernel as long as it lives.
        (None, 0),
        (b"sleep\0infinity\0", 0),
        (b"python\0-m\0joblib.externals.loky.backend\0", 0),
        (b"python\0/lib/debugpy/adapter\0--for-server\0", 0),
        (b"", 0),
    ],
)
@pytest.mark.parametrize("kernel", [KERNEL, MARIMO_KERNEL])
def test_processes_of_a_kernel_are_counted_but_not_its_workers(monkeypatch, kernel, command, jobs):
    """Jupyter kernels lead a session; marimo kernels share the session of their server."""
    inside = 10 if kernel is KERNEL else APP_PID
    table = {
        AGENT_PID: (1, "S", 0, 0, 2, 2, 0),
        APP_PID: (AGENT_PID, "S", 0, 0, APP_PID, APP_PID, 0),
        6: (APP_PID, "S", 0, 0, APP_PID, APP_PID, 0),
        10: (APP_PID, "S", 0, 0, inside, inside, 0),
        11: (10, "S", 0, 0, inside, inside, 0),
    }
    command = kernel if command is None else command
    lines = {APP_PID: b"server\0", 6: b"language-server\0", 10: kernel, 11: command}
    monkeypatch.setattr(jobs_module, "command_line", lambda pid: lines[pid])
    assert jobs_module.jobs_of([5, 6, 10, 11], table, AGENT_PID, APP_PID).count == jobs


TERMINAL = (136 << 8) | 3


@pytest.mark.parametrize(
    ("command", "jobs", "viewed"),
    [
        (b"top\0-d\x001\0", 0, {TERMINAL}),
        (b"/usr/bin/nvidia-smi\0-l\0", 0, {TERMINAL}),
        (b"/usr/bin/python3\0/usr/bin/gpustat\0-i\0", 0, {TERMINAL}),
        (b"tmux\0attach\0", 0, {TERMINAL}),
        (b"python3\0train.py\0top\0", 1, set()),
        (b"watch\0-n\x001\0nvidia-smi\0", 0, {TERMINAL}),
        (b"watch\0-n1\0python\0step.py\0", 1, set()),
        (b"tail\0-f\0log\0", 1, set()),
        (b"tail\0-f\0/dev/null\0", 0, set()),
        (b"sleep\0infinity\0", 0, set()),
        (b"sleep\x009999\0", 1, set()),
        (b"", 1, set()),
    ],
)
def test_monitoring_programs_are_not_jobs(monkeypatch, command, jobs, viewed):
    table = {
        AGENT_PID: (1, "S", 0, 0, 2, 2, 0),
        APP_PID: (AGENT_PID, "S", 0, 0, APP_PID, APP_PID, 0),
        10: (APP_PID, "S", 0, 0, 10, 10, TERMINAL),
        11: (10, "S", 0, 0, 11, 10, TERMINAL),
    }
    lines = {APP_PID: b"server\0", 10: b"/bin/bash\0-l\0", 11: command}
    monkeypatch.setattr(jobs_module, "command_line", lambda pid: lines[pid])
    found = jobs_module.jobs_of([5, 10, 11], table, AGENT_PID, APP_PID)
    assert (found.count, found.viewed_terminals) == (jobs, viewed)
    assert found.pids == ({10, 11} if jobs or not viewed else {10})
    assert found.kernel_pids == set()
    monitor = bool(viewed) and not command.startswith(b"tmux")
    assert found.monitor_pids == ({11} if monitor else set())


@pytest.mark.parametrize(
    ("inside", "jobs"),
    [
        ([], 0),
        ([b"-bash\0"], 0),
        ([b"/bin/zsh\0-il\0", b"bash\0--norc\0"], 0),
        ([b"-bash\0", b"sleep\x009999\0"], 1),
        ([b"bash\0train.sh\0"], 1),
        ([b"sh\0-c\0sleep 5; ls\0"], 1),
    ],
)
def test_tmux_is_a_job_if_something_runs_in_it(monkeypatch, inside, jobs):
    """The tmux server is an orphan of the agent. Each window is a session of its own."""
    table = {
        AGENT_PID: (1, "S", 0, 0, 2, 2, 0),
        APP_PID: (AGENT_PID, "S", 0, 0, APP_PID, APP_PID, 0),
        20: (AGENT_PID, "S", 0, 0, 20, 20, 0),
        **{30 + at: (20, "S", 0, 0, 30 + at, 30 + at, TERMINAL + at) for at in range(len(inside))},
    }
    lines = {
        APP_PID: b"server\0",
        20: b"tmux\0new\0-d\0",
        **{30 + at: line for at, line in enumerate(inside)},
    }
    monkeypatch.setattr(jobs_module, "command_line", lambda pid: lines[pid])
    pids = [pid for pid in table if pid != AGENT_PID]
    found = jobs_module.jobs_of(pids, table, AGENT_PID, APP_PID)
    assert found.count == jobs
    assert found.pids == set(range(30, 30 + len(inside)))


def test_a_script_on_the_input_of_a_shell_in_tmux_is_a_job(monkeypatch):
    """Commands share the process group of the shell, like those of a kernel."""
    table = {
        AGENT_PID: (1, "S", 0, 0, 2, 2, 0),
        20: (AGENT_PID, "S", 0, 0, 20, 20, 0),
        30: (20, "S", 0, 0, 30, 30, TERMINAL),
        31: (30, "S", 0, 0, 30, 30, TERMINAL),
    }
    lines = {20: b"tmux\0new\0-d\0bash < script\0", 30: b"bash\0", 31: b"sleep\x009999\0"}
    monkeypatch.setattr(jobs_module, "command_line", lambda pid: lines[pid])
    assert jobs_module.jobs_of([20, 30, 31], table, AGENT_PID, APP_PID).count == 1


def test_processes_of_watch_belong_to_the_monitor(monkeypatch):
    table = {
        10: (APP_PID, "S", 0, 0, 10, 10, TERMINAL),
        11: (10, "S", 0, 0, 11, 10, TERMINAL),
        12: (11, "S", 0, 0, 11, 10, TERMINAL),
        13: (12, "S", 0, 0, 11, 10, TERMINAL),
    }
    lines = {10: b"-bash\0", 11: b"watch\0nvidia-smi\0", 12: b"sh\0-c\0nvidia-smi\0", 13: b"nvidia-smi\0"}
    monkeypatch.setattr(jobs_module, "command_line", lambda pid: lines[pid])
    found = jobs_module.jobs_of([10, 11, 12, 13], table, AGENT_PID, APP_PID)
    assert (found.count, found.pids) == (0, {10})
    # The CPU time of a child of `watch` is added to `watch` when the child ends.
    assert {11} <= found.monitor_pids <= {11, 13}


LISTEN = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(flush=True)
client, _address = server.accept()
time.sleep(600)
"""


def test_server_is_unused_without_external_connections():
    port = free_port()
    command = [sys.executable, "-c", LISTEN, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()

            def unused(*commands: set[int]) -> int | None:
                return servers.unused_servers(list(commands), process_table())

            assert unused({server.pid}) == 1
            with socket.create_connection(("127.0.0.1", port)):
                eventually(lambda: unused({server.pid}) == 0, limit_s=20, what="a connection")
        finally:
            server.kill()


def test_cpu_usage_of_commands_never_decreases(monkeypatch):
    meter = jobs_module.Meter()
    used = {7: (30, 1000), 8: (10, 5)}
    monkeypatch.setattr(jobs_module, "io_bytes_of", lambda pid: used[pid][1])

    def measure(*pids: int) -> tuple[float, int | None]:
        meter.measure(set(pids), {pid: (1, "S", used[pid][0], 0, pid, pid, 0) for pid in pids})
        return meter.ticks, meter.io_bytes

    assert measure(7, 8) == (40, 1005)
    used[7] = (35, 1100)
    assert measure(7) == (45, 1105)
    # The PID of the ended process is reused.
    used[7] = (2, 10)
    assert measure(7, 8) == (57, 1120)
    assert meter.cpu_seconds() == round(57 / jobs_module.CLOCK_TICKS, 2)

    def refuse(pid: int) -> int:
        raise {7: PermissionError, 8: FileNotFoundError}[pid]

    monkeypatch.setattr(jobs_module, "io_bytes_of", refuse)
    assert measure(8) == (57, 1120)
    assert measure(7) == (59, None)
    # The next process is readable and fully counted.
    monkeypatch.setattr(jobs_module, "io_bytes_of", lambda pid: used[pid][1])
    assert measure(7) == (59, 1130)


def test_process_bytes_are_bytes_read_and_written(tmp_path):
    before = jobs_module.io_bytes_of(os.getpid())
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    assert 1_000_000 <= jobs_module.io_bytes_of(os.getpid()) - before < 1_100_000


def test_last_input_and_output_time_of_each_terminal_is_reported():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("cat", ["cat"])
    try:
        eventually(lambda: process_table()[pid][6] != 0, limit_s=20, what="cat has its terminal")
        row = process_table()[pid]
        assert terminals_of([], {}, set()) == {"count": 0, "last_activity": None}
        name = Path(f"/proc/{pid}/fd/0").readlink()
        os.utime(name, (1_800_000_000, 1_700_000_000))
        found = terminals_of([pid], {pid: row}, set())
        assert found == {"count": 1, "last_activity": "2027-01-15T08:00:00Z"}
        os.utime(name, (1_700_000_000, 1_800_000_000))
        viewed = terminals_of([pid], {pid: row}, {row[6]})
        assert viewed == {"count": 1, "last_activity": "2023-11-14T22:13:20Z"}
        assert terminals_of([pid], {pid: (*row[:6], (136 << 8) | (999 << 20))}, set()) is None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


@pytest.mark.parametrize(
    ("sessions", "states", "kernels"),
    [
        ({}, [], {"count": 0, "busy": 0, "last_activity": None}),
        ({"s_1": {}, "s_2": {}}, ["running", "idle"], {"count": 2, "busy": 1, "last_activity": None}),
        ({"s_1": {}}, ["stopped"], {"count": 1, "busy": 0, "last_activity": None}),
        # An older marimo or an unknown state: not measured, which counts as work.
        ({"s_1": {}}, [None], None),
        ({"s_1": {}}, ["dreaming"], None),
        ([], [], None),
    ],
)
def test_marimo_reports_notebooks_with_a_running_cell(monkeypatch, sessions, states, kernels):
    left = list(states)

    def answer(_method, url, _token, _body, _timeout_s, more=None):
        if url.endswith("/api/sessions"):
            return 200, sessions
        assert url.endswith("/api/kernel/status")
        assert more["Marimo-Session-Id"] in sessions
        state = left.pop(0)
        return (200, {"state": state}) if state else (404, None)

    monkeypatch.setattr(marimo, "http_json", answer)
    assert marimo.marimo_activity(1, "t") == {"kernels": kernels}


def test_unresponsive_marimo_is_not_measured(monkeypatch):
    def answer(*_arguments):
        raise OSError

    monkeypatch.setattr(marimo, "http_json", answer)
    assert marimo.marimo_activity(1, "t") == {"kernels": None}


WAITS = """
import multiprocessing as mp, sys

def wait(commands, done):
    for _ in iter(commands.recv, None):
        done.send(1)

if __name__ == "__main__":
    context = mp.get_context("spawn")
    theirs, ours = context.Pipe()
    process = context.Process(target=wait, args=(theirs, theirs), daemon=True)
    process.start()
    for line in sys.stdin:
        ours.send(line)
        print(ours.recv(), flush=True)
"""


def test_short_marimo_cell_increases_kernel_wakeups(tmp_path):
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, str(tmp_path / "waits.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def run() -> None:
            server.stdin.write(b"cell\n")
            server.stdin.flush()
            server.stdout.readline()

        def seen() -> dict[int, int]:
            table = process_table()
            return marimo.wakeups_of(descendants(server.pid, table), table, server.pid)

        run()
        before = eventually(lambda: found if (found := seen()) == seen() else None, limit_s=20, what="rest")
        assert len(before) == 1
        run()
        assert eventually(lambda: found if (found := seen()) != before else None, limit_s=20, what="a wakeup")


def test_last_kernel_wakeup_time_is_remembered(monkeypatch, configuration):
    config = configuration(activity="marimo")
    complete(config)
    app = App(0, 0, -1)
    app_listener = AppListener(-1, app, None, Log(config["log_path"], 1, []))
    one = observing.Observer(config, app, app_listener, None)
    one.notice_wakeups({})
    assert one.last_wakeup is None
    now = [1_800_000_000.0]
    real = time.gmtime
    monkeypatch.setattr(observing.time, "gmtime", lambda: real(now[0]))
    one.notice_wakeups({7: 3})
    first = one.last_wakeup
    now[0] += 60
    one.notice_wakeups({7: 3})
    assert one.last_wakeup == first == "2027-01-15T08:00:00Z"
    one.notice_wakeups({7: 4})
    assert one.last_wakeup == "2027-01-15T08:01:00Z"
