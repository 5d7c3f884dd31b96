"""Editors: kernels started by VS Code, its own processes, and saved files."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from provisioning.agent.program import edits, jobs, kernel_probe
from provisioning.agent.program.kernel_probe import GREETING, REPLY, Kernels, connection_file_of


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (b"/bin/python\0-m\0ipykernel_launcher\0--f=/tmp/v2-1.json\0", "/tmp/v2-1.json"),
        (b"/bin/python\0-m\0ipykernel_launcher\0-f\0/tmp/1.json\0", "/tmp/1.json"),
        (b"/opt/R\0--slave\0-e\0IRkernel::main()\0--args\0/tmp/r.json\0", "/tmp/r.json"),
        (b"/bin/python\0-m\0ipykernel\0install\0", None),
        (b"/bin/python\0train.py\0-f\0a.json\0", None),
    ],
)
def test_connection_file_is_found_in_the_kernel_command_line(command, path):
    assert connection_file_of(command) == path


class Kernel:
    """Shell channel of a kernel: a socket that implements the part of ZMTP needed here."""

    def __init__(self, folder: Path) -> None:
        self.idle = threading.Event()
        self.requests: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.file = folder / "kernel.json"
        port = self.server.getsockname()[1]
        self.file.write_text(
            json.dumps({"ip": "127.0.0.1", "transport": "tcp", "shell_port": port, "key": "k"})
        )
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                client, _address = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(client,), daemon=True).start()

    def answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        client.sendall(GREETING)
        received = b""
        while b"kernel_info_request" not in received:
            chunk = client.recv(65536)
            if not chunk:
                return
            received += chunk
        self.requests.append(received)
        self.idle.wait(60)
        client.sendall(b"\x01\x09<IDS|MSG>" + REPLY)


def test_unresponsive_kernel_is_busy_and_queried_once(tmp_path, monkeypatch):
    kernel = Kernel(tmp_path)
    line = b"python\0-m\0ipykernel_launcher\0-f\0" + str(kernel.file).encode() + b"\0"
    monkeypatch.setattr(kernel_probe, "command_line", lambda pid: line if pid == 7 else b"bash\0")
    monkeypatch.setattr(kernel_probe, "PATIENCE_S", 0.2)
    kernels = Kernels()
    busy = {"count": 1, "busy": 1, "last_activity": None}
    assert kernels.sample([7, 8]) == kernels.sample([7, 8]) == busy
    assert len(kernel.requests) == 1
    assert kernel.requests[0].count(b"<IDS|MSG>") == 1
    monkeypatch.setattr(kernel_probe, "PATIENCE_S", 20.0)
    kernel.idle.set()
    pending = kernels.probes[7].pending
    assert pending is not None
    kernels.probes[7].read(20.0)
    assert kernels.sample([7]) == {"count": 1, "busy": 0, "last_activity": None}
    # Not queried again at once; later, an idle kernel answers at once.
    monkeypatch.setattr(kernel_probe, "PROBE_EVERY_S", 0.0)
    assert kernels.sample([7])["busy"] == 0
    assert len(kernel.requests) == 2
    kernel.server.close()
    kernel.file.unlink()
    assert kernels.sample([7])["busy"] == 1, "an unknown state counts as work"
    assert kernels.sample([]) == {"count": 0, "busy": 0, "last_activity": None}


def test_vscode_processes_exclude_programs_started_in_terminals(monkeypatch):
    table = {
        5: (2, "S", 0, 0, 5, 5, 0),
        6: (5, "S", 0, 0, 5, 5, 0),
        7: (6, "S", 0, 0, 5, 5, 0),
        8: (6, "S", 0, 0, 5, 5, 0),
        9: (7, "S", 0, 0, 9, 9, 0),
        10: (8, "S", 0, 0, 5, 5, 0),
    }
    lines = {
        7: b"node\0bootstrap-fork\0--type=ptyHost\0",
        8: b"node\0bootstrap-fork\0--type=extensionHost\0",
        9: b"bash\0",
        10: b"python\0train.py\0",
    }
    monkeypatch.setattr(jobs, "command_line", lambda pid: lines.get(pid, b"node\0"))
    assert jobs.editor_pids(list(table), table, 5) == {5, 6, 7, 8}


def test_last_edit_is_the_newest_save(tmp_path, monkeypatch):
    saved = tmp_path / edits.HISTORY
    assert edits.last_edit("code-server", str(tmp_path), 1, "") is None
    for name, at in (("a", 1_700_000_000), ("b", 1_800_000_000)):
        (saved / name).mkdir(parents=True)
        os.utime(saved / name, (at, at))
    assert edits.last_edit("code-server", str(tmp_path), 1, "") == "2027-01-15T08:00:00Z"
    notebook = tmp_path / "work" / "one.ipynb"
    notebook.parent.mkdir()
    notebook.touch()
    os.utime(notebook, (1_750_000_000, 1_750_000_000))
    sessions = [{"path": "work/one.ipynb"}, {"path": "gone.ipynb"}, {"path": "../../etc/passwd"}, {}]
    monkeypatch.setattr(edits, "http_json", lambda *_: (200, sessions))
    assert edits.last_edit("jupyter", str(tmp_path), 1, "") == "2025-06-15T15:06:40Z"
    monkeypatch.setattr(edits, "http_json", lambda *_: (500, None))
    assert edits.last_edit("jupyter", str(tmp_path), 1, "") is None
    assert edits.last_edit("marimo", str(tmp_path), 1, "") is None
