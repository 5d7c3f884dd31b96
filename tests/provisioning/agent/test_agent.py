"""The agent as a real process, with a real app and a test portal."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from agent_support import AGENT, AGENT_TOKEN, APP_TOKEN, Portal, free_port

from provisioning.agent.program import jupyter
from provisioning.agent.program.config import EXIT_CONFIG, EXIT_PORT_TAKEN
from provisioning.agent.program.log import TAIL_LINES, Log


def test_ready_is_pushed_with_endpoint_and_token(portal, configuration, start, state):
    config = configuration()
    start()
    authorization, body = portal.next("ready")
    assert authorization == f"Bearer {AGENT_TOKEN}"
    assert body == {
        "workspace_id": config["workspace_id"],
        "generation": 4,
        "endpoint": f"http://127.0.0.1:{config['ports'][0]}",
    }
    assert state() == {"phase": "ready", "generation": 4, "port": config["ports"][0]}


def test_heartbeat_reports_running_work_and_null_if_unknown(portal, configuration, start):
    config = configuration()
    start()
    portal.next("ready")
    with socket.create_connection(("127.0.0.1", config["ports"][0])):
        # Skip heartbeats sent before the connection.
        for _ in range(300):
            last = portal.next("heartbeat")[1]["activity"]
            if last["connections"]:
                break
    assert last["connections"] == 1
    assert last["processes"] == 1
    assert last["rss_mib"] >= 1 and last["cpu_seconds"] > 0
    assert last["gpus"] is None and last["kernels"] is None
    assert last["terminals"] == {"count": 0, "last_activity": None}


def test_app_runs_while_the_portal_is_down_and_reports_later(portal, configuration, start):
    port = portal.port
    portal.close()
    config = configuration()
    process = start()
    deadline = time.monotonic() + 10
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{config['ports'][0]}/", timeout=2).close()
            break
        except OSError:
            assert time.monotonic() < deadline
    assert process.poll() is None
    back = Portal(port)
    try:
        assert back.next("ready")[1]["generation"] == 4
        assert back.next("heartbeat")[1]["activity"]["processes"] == 1
    finally:
        back.close()


@pytest.mark.parametrize("status", [401, 403, 410])
def test_a_revoked_token_ends_app_and_agent(portal, configuration, start, state, app_pids, status):
    configuration()
    process = start()
    portal.next("heartbeat")
    portal.status = status
    assert process.wait(10) == 0
    assert app_pids() == []
    assert state()["reason"] == "revoked"


def test_answers_other_than_revocation_do_not_end_the_app(portal, configuration, start):
    configuration()
    process = start()
    portal.next("ready")
    portal.status = 503
    for _ in range(2):
        portal.next("heartbeat")
    portal.status = 204
    portal.next("heartbeat")
    assert process.poll() is None


def test_an_app_that_ends_is_reported_with_code_and_last_lines(portal, configuration, start, state):
    configuration("exit")
    process = start()
    _, body = portal.next("exited")
    assert body["exit_code"] == 3
    assert body["log_tail"].splitlines()[-1] == "last words"
    assert process.wait(10) == 0
    assert (state()["phase"], state()["reason"], state()["exit_code"]) == ("exited", "app_exit", 3)


def test_app_killed_by_a_signal_has_exit_code_above_128(portal, configuration, start, app_pids):
    configuration()
    start()
    portal.next("ready")
    os.kill(app_pids()[0], signal.SIGKILL)
    assert portal.next("exited")[1]["exit_code"] == 137


def test_sigterm_ends_app_and_agent(portal, configuration, start, state, app_pids):
    configuration()
    process = start()
    portal.next("ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert app_pids() == []
    assert state()["reason"] == "stopped"
    with pytest.raises(queue.Empty):
        portal.next("exited", timeout_s=0.2)


def test_app_ignoring_sigterm_is_killed_after_the_grace_period(portal, configuration, start, app_pids):
    configuration("stubborn", stop_timeout_s=0.5)
    process = start()
    portal.next("ready")
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert 0.4 < time.monotonic() - begun < 5
    assert app_pids() == []


def test_orphan_processes_in_other_sessions_end(portal, configuration, start, app_pids):
    configuration("orphan")
    process = start()
    portal.next("ready")
    assert len(app_pids()) == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert app_pids() == []


def test_app_without_successful_answer_is_stopped(portal, configuration, start, state, app_pids):
    configuration("broken", start_timeout_s=1)
    process = start()
    _, body = portal.next("exited")
    assert "did not answer" in body["log_tail"]
    assert process.wait(10) == 0
    assert state()["reason"] == "start_timeout"
    assert app_pids() == []


def test_occupied_port_is_skipped(portal, configuration, start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = free_port()
        configuration(ports=[taken.getsockname()[1], other])
        start()
        assert portal.next("ready")[1]["endpoint"] == f"http://127.0.0.1:{other}"


def test_missing_free_port_has_its_own_exit_code(configuration, start, state, app_pids):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        configuration(ports=[taken.getsockname()[1]])
        assert start().wait(10) == EXIT_PORT_TAKEN
    assert state()["reason"] == "port_taken"
    assert app_pids() == []


def test_answer_of_another_process_on_the_port_is_not_readiness(
    portal, configuration, start, state, tmp_path
):
    """Otherwise that process would receive the requests of the workspace."""
    port = free_port()
    # The app never listens; the other process does, once the agent has found the port free.
    configuration("good", ports=[port], argv=["sleep", "600"])
    process = start()
    deadline = time.monotonic() + 10
    while not (tmp_path / "state.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stranger = Portal(port)
    try:
        assert process.wait(10) == EXIT_PORT_TAKEN
    finally:
        stranger.close()
    assert state()["reason"] == "port_taken"


def test_missing_program_is_named(portal, configuration, start, state):
    configuration(argv=["no-such-program-here"])
    process = start()
    _, body = portal.next("exited")
    assert body["exit_code"] == 127
    assert "no-such-program-here" in body["log_tail"]
    assert process.wait(10) == 0
    assert state()["reason"] == "exec_failed"


def test_tokens_are_not_in_logs_or_arguments(portal, configuration, start, tmp_path, app_pids):
    configuration(env={"PATH": os.environ["PATH"], "TOKEN": "{token}", "FILE": "{token_file}"})
    process = start()
    portal.next("ready")
    for pid in (process.pid, *app_pids()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert APP_TOKEN.encode() not in words and AGENT_TOKEN.encode() not in words
    assert "secret is [token]" in (tmp_path / "app.log").read_text()
    token_file = tmp_path / "app-token"
    assert token_file.read_text() == APP_TOKEN
    assert token_file.stat().st_mode & 0o077 == 0


def test_configuration_is_removed_if_requested(portal, configuration, start, tmp_path):
    configuration(remove_config=True)
    start()
    portal.next("ready")
    assert not (tmp_path / "agent.json").exists()


@pytest.mark.parametrize("text", ["{", "{}", '{"argv": []}', "[]"])
def test_invalid_configuration_prints_one_line(tmp_path, text):
    (tmp_path / "agent.json").write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(AGENT), str(tmp_path / "agent.json")], capture_output=True, text=True
    )
    assert done.returncode == EXIT_CONFIG
    assert done.stderr.startswith("berth agent: ") and len(done.stderr.splitlines()) == 1


def test_the_log_rotates_and_redacts_over_chunk_borders(tmp_path):
    log = Log(str(tmp_path / "app.log"), 1000, ["secret-token"])
    for piece in (b"a secret-", b"tok", b"en b secret", b"-x\n"):
        log.feed(piece)
    log.feed(b"", last=True)
    assert (tmp_path / "app.log").read_text() == "a [token] b secret-x\n"
    for number in range(100):
        log.feed(b"line %03d of a hundred lines\n" % number)
    assert (tmp_path / "app.log").stat().st_size <= 1000
    assert (tmp_path / "app.log.1").stat().st_size <= 1000
    tail = log.tail().splitlines()
    assert tail[-1] == "line 099 of a hundred lines" and len(tail) <= TAIL_LINES


def test_app_survives_a_full_disk_with_lost_log_lines(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    log = Log("/dev/full", 1000, [])
    log.feed(b"lost\n")
    log.feed(b"lost too\n", last=True)
    assert log.pending == b""


def test_jupyter_activity_counts_kernels(monkeypatch):
    kernels = [
        {"execution_state": "busy", "last_activity": "2026-01-02T00:00:00Z"},
        {"execution_state": "idle", "last_activity": "2026-01-01T00:00:00Z"},
    ]
    answers = {"/api/kernels": (200, kernels), "/api/terminals": (500, None)}
    monkeypatch.setattr(
        jupyter,
        "http_json",
        lambda method, url, *rest: next(a for p, a in answers.items() if url.endswith(p)),
    )
    assert jupyter.jupyter_activity(1, "t") == {
        "kernels": {"count": 2, "busy": 1, "last_activity": "2026-01-02T00:00:00Z"},
        "terminals": None,
    }


@pytest.mark.parametrize(
    ("state", "quiet_s", "busy"),
    [
        ("busy", 7200, 1),
        ("idle", 1, 0),
        ("dead", 1, 0),
        ("starting", 5, 1),
        ("starting", 660, 0),
        ("restarting", 660, 0),
        ("unknown", 660, 0),
        (None, 660, 0),
    ],
)
def test_a_kernel_that_restarts_is_busy_for_a_limited_time(monkeypatch, state, quiet_s, busy):
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - quiet_s))
    kernels = [{"execution_state": state, "last_activity": stamp}, {"execution_state": "idle"}]
    monkeypatch.setattr(jupyter, "http_json", lambda *_: (200, kernels))
    assert jupyter.jupyter_activity(1, "t")["kernels"]["busy"] == busy


@pytest.mark.parametrize("stamp", [None, 7, "", "yesterday", "2" * 50])
def test_a_kernel_in_transition_without_a_time_is_not_busy(monkeypatch, stamp):
    kernels = [{"execution_state": "starting", "last_activity": stamp}]
    monkeypatch.setattr(jupyter, "http_json", lambda *_: (200, kernels))
    assert jupyter.jupyter_activity(1, "t")["kernels"]["busy"] == 0


def test_few_modules_are_imported_before_the_app_starts():
    """Imported modules delay the start of a workspace and are compiled on first use."""
    code = (
        f"import sys; sys.argv=['agent.py']; there={{'__name__': 'agent', '__file__': {str(AGENT)!r}}}\n"
        f"before=list(sys.path); exec(compile(open({str(AGENT)!r}).read(), 'agent.py', 'exec'), there)\n"
        "there['module']('run'); assert sys.path == before\n"
        "slow = {'socket', 'subprocess', 'http.client', 'ctypes', 'threading', 'typing', 'pathlib', 'ssl'}\n"
        "print(sorted(slow & set(sys.modules)), sorted(m for m in sys.modules if 'berth_agent' in m))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    first = ("app", "app_listener", "config", "log", "portal", "run", "state", "waking")
    assert done.stdout.strip() == f"[] {['berth_agent', *(f'berth_agent.{name}' for name in first)]}"
