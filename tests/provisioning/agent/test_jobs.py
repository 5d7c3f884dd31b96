"""Commands of shells, in the foreground, in the background and left behind; and shells that wait."""

from __future__ import annotations

import pytest

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


def jobs_seen(portal, configuration, start, command: str, wanted: int) -> int:
    """The number of jobs in the heartbeats, as soon as it is the wanted one; else the last one."""
    configuration(argv=["python3", "-c", APP, "{port}", command])
    start()
    portal.next("ready")
    seen = -1
    for _ in range(60):
        seen = portal.next("heartbeat")[1]["activity"]["jobs"]
        if seen == wanted:
            break
    return seen


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("sleep 600", 1),
        ("sleep 600 &", 1),
        ("sleep 600 & sleep 601 & sleep 602", 3),
        ("cat | sort | uniq", 1),
        ("nohup sleep 600 >/dev/null 2>&1 & exit", 1),
        ("setsid -f sleep 600", 1),
    ],
)
def test_commands_are_counted_whether_they_compute_or_wait(portal, configuration, start, command, wanted):
    assert jobs_seen(portal, configuration, start, command, wanted) == wanted


def test_a_shell_that_waits_is_no_job(portal, configuration, start):
    assert jobs_seen(portal, configuration, start, "true", 0) == 0
    assert {portal.next("heartbeat")[1]["activity"]["jobs"] for _ in range(10)} == {0}
