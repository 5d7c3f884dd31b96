"""Deactivation of an account during use closes its connections, even for an unresponsive notebook."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.e2e.conftest import Curl
from tests.e2e.kernels import channels, execute
from tests.instance import Berth, eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough("minutes with whole notebooks; `make test` has tests/accounts"),
]
# The stop timeout of the unresponsive app's template; no test waits for it.
PATIENCE_S = 300
# A kernel that ignores SIGTERM; optionally it also keeps the server from ending.
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while not os.path.exists("now"):  # what has been printed goes out first
    time.sleep(0.05)
while True:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and "jupyter" in open(f"/proc/{name}/cmdline").read():
                os.kill(int(name), signal.SIGSTOP)
        except OSError:
            pass
    time.sleep(0.05)
'''] if %d else ["true"], start_new_session=True)
print("ready")
"""


@pytest.fixture
def admin(berth: Berth) -> Iterator[httpx.Client]:
    token = berth.manage("create_token", "admin")
    with httpx.Client(
        base_url=f"http://127.0.0.1:{berth.port}/api/v1/",
        headers={"Authorization": f"Bearer {token}"},
        timeout=20,
    ) as client:
        yield client


@pytest.fixture
def browser(berth: Berth) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{berth.port}", timeout=20) as client:
        yield client


class Watch:
    """The end of a WebSocket or stream, in seconds of the clock; None while open."""

    def __init__(self, wait: Any) -> None:
        self.ended_at: float | None = None
        threading.Thread(target=self._run, args=(wait,), daemon=True).start()

    def _run(self, wait: Any) -> None:
        wait()
        self.ended_at = time.monotonic()


def until_closed(channel: ClientConnection) -> None:
    try:
        while True:
            channel.recv()
    except ConnectionClosed:
        pass


def accepted(berth: Berth, admin: httpx.Client, browser: httpx.Client, name: str) -> str:
    """Accept an invitation in the browser; return a token of the user."""
    made = admin.post("users", json={"username": name, "teams": [{"team": "lab", "role": "member"}]})
    assert made.status_code == 201, made.text
    path = httpx.URL(made.json()["invite_url"]).path
    page = browser.get(path)
    assert page.status_code == 200, page.text
    field = page.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    password = "a-guests-long-password"
    sent = browser.post(path, data={"password": password, "repeated": password, "csrfmiddlewaretoken": field})
    assert sent.status_code == 302, sent.text
    return berth.manage("create_token", name)


def held_up(berth: Berth, workspace_id: str) -> bool:
    """Whether processes of the workspace are stopped by a signal."""
    states = []
    for process in berth.owned(f"ws-{workspace_id.replace('-', '')}"):
        try:
            stat = Path(f"/proc/{process.pid}/stat").read_text()
        except OSError:
            continue
        states.append(stat.rpartition(") ")[2].split()[0])
    return "T" in states


@pytest.mark.parametrize(
    "stubborn",
    [pytest.param(False, marks=pytest.mark.thorough("`make test` has the one that resists")), True],
    ids=["a usual notebook", "one that resists"],
)
def test_deactivation_closes_open_connections(
    berth: Berth, admin: httpx.Client, browser: httpx.Client, stubborn: bool
) -> None:
    name = "gus" if stubborn else "gina"
    token = accepted(berth, admin, browser, name)
    curl = Curl(berth, token)
    if stubborn:
        lasting = f"Template.objects.filter(slug='jupyterlab').update(stop_timeout_s={PATIENCE_S})"
        berth.manage("shell", "-c", f"from portal.catalog.models import Template; {lasting}")
    made = curl(
        "POST", "/api/v1/workspaces", {"team": "lab", "template": "jupyterlab", "flavor": "cpu-small"}
    )
    assert made.status == 201, made
    workspace_id, host = made.json["id"], berth.host(made.json["id"])
    eventually(lambda: curl("GET", "/api", host=host).status == 200, limit_s=60, what="the notebook answers")
    kernel = curl("POST", "/api/kernels", {"name": "python3"}, host=host).json["id"]
    stream = browser.stream("GET", "/events/", headers={"Accept": "text/event-stream"})
    with channels(berth.origin(workspace_id), token, kernel) as channel, stream as events:
        assert events.status_code == 200
        assert execute(channel, STUBBORN % stubborn) == "ready\n"
        if stubborn:
            (Path(berth.home) / "homes" / "lab" / name / "now").touch()
            eventually(lambda: held_up(berth, workspace_id), limit_s=20, what="its server is held up")
        watched = [Watch(lambda: until_closed(channel)), Watch(lambda: list(events.iter_raw()))]
        began = time.monotonic()
        assert admin.post(f"users/{name}/deactivate", json={"note": "left"}).status_code == 200
        eventually(
            lambda: all(each.ended_at for each in watched), limit_s=40, what="the connections have ended"
        )
    # With `pytest -s`: the measurements of docs/adr/0017.
    print("cut after", [round((each.ended_at or 0) - began, 1) for each in watched])
    assert curl("GET", "/api/v1/me").status == 401
    assert browser.get("/api/v1/me").status_code == 401
    assert curl("GET", "/api", host=host).status in {401, 403}
    home = Path(berth.home) / "homes" / "lab" / name
    assert home.is_dir()
    eventually(
        lambda: not berth.owned(f"ws-{workspace_id.replace('-', '')}"), limit_s=40, what="it has ended"
    )
