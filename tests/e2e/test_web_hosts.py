"""Two web hosts behind one address share sessions and keys, and are restarted one by one under load."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from portal.cli.loopback import LoopbackTransport
from tests.e2e.web_site import LIMIT_S, Address, Site, running_site
from tests.instance import Api, eventually
from tests.populate import PASSWORD

pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("web-hosts"),
    pytest.mark.thorough("three sets of processes; `make test` has sessions, streams and keys in one"),
]
SETTLED_S = 5
"""Longer than the address needs to see that a host answers again."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("hosts")) as found:
        yield found


def sign_in(client: httpx.Client, address: Address) -> None:
    page = client.get("/sign-in/")
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert found is not None
    fields = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": found[1]}
    answer = client.post("/sign-in/", data=fields, headers={"Referer": f"{address.url}/sign-in/"})
    assert answer.status_code == 302, answer.text[:2000]


def test_session_of_one_host_is_valid_at_the_other(site: Site) -> None:
    a, b = site.hosts
    with site.client(a) as at_a, site.client(b) as at_b:
        # The form of one host, sent to the other.
        page = at_a.get("/sign-in/")
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert found is not None
        at_b.cookies.update(at_a.cookies)
        fields = {"username": "ada", "password": PASSWORD, "csrfmiddlewaretoken": found[1]}
        answer = at_b.post("/sign-in/", data=fields, headers={"Referer": f"{site.address.url}/sign-in/"})
        assert answer.status_code == 302
        at_a.cookies.update(at_b.cookies)
        assert at_a.get("/").status_code == at_b.get("/").status_code == 200
        # It also ends at both.
        token = at_a.cookies["berth-csrf"]
        headers = {"Referer": f"{site.address.url}/", "X-CSRFToken": token}
        assert at_a.post("/sign-out/", headers=headers).status_code == 302
        assert at_b.get("/").status_code == 302


def test_request_replayed_at_the_other_host_takes_effect_once(site: Site) -> None:
    body = {"team": "lab", "template": "files", "flavor": "tiny", "name": "once"}
    headers = {**site.bearer(), "Idempotency-Key": uuid.uuid4().hex}
    answers = []
    for host in site.hosts:
        with site.client(host) as client:
            answers.append(client.post("/api/v1/workspaces", json=body, headers=headers))
    assert [answer.status_code for answer in answers] == [201, 201], [answer.text for answer in answers]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    with site.client(site.hosts[1]) as client:
        other = client.post("/api/v1/workspaces", json={**body, "name": "twice"}, headers=headers)
    assert other.status_code == 409, other.text
    site.ada.act(answers[0].json()["id"], "delete")
    site.ada.wait(answers[0].json()["id"], "terminated", limit_s=LIMIT_S)


# --- a rolling restart -------------------------------------------------------------------------------


@dataclass
class Load:
    """The actions of several users, each in a thread; `problems` lists errors that a user would see."""

    site: Site
    over: threading.Event = field(default_factory=threading.Event)
    written: threading.Event = field(default_factory=threading.Event)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    connected: int = 0

    def count(self, what: str, answer: httpx.Response) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        if not 200 <= answer.status_code < 400:
            self.problems.append(f"{what}: {answer.status_code} {answer.text[:300]}")

    def run(self, each: Callable[[], None], pause_s: float) -> None:
        try:
            while not self.over.is_set():
                each()
                self.over.wait(pause_s)
        except Exception as error:
            self.problems.append(f"{each.__name__}: {error!r}")

    def pages(self) -> None:
        with self.site.client() as client:
            sign_in(client, self.site.address)
            for _ in range(20):
                self.count("page", client.get("/"))
                self.over.wait(0.1)

    def rest(self) -> None:
        with self.site.client() as client:
            answer = client.get("/api/v1/workspaces", headers=self.site.bearer())
            self.count("rest", answer)

    def writes(self) -> None:
        """Create and delete a workspace, without key and without retry."""
        if self.written.is_set():
            return
        body = {"team": "lab", "template": "files", "flavor": "tiny", "name": f"w-{uuid.uuid4().hex[:8]}"}
        with self.site.client() as client:
            answer = client.post("/api/v1/workspaces", json=body, headers=self.site.bearer())
            self.count("create", answer)
            if answer.is_success:
                self.made.append(answer.json()["id"])
                path = f"/api/v1/workspaces/{answer.json()['id']}"
                self.count("delete", client.delete(path, headers=self.site.bearer()))

    def app(self) -> None:
        with httpx.Client(transport=LoopbackTransport(), timeout=20) as client:
            url = f"{self.site.address.origin(self.site.workspace)}/"
            self.count("app", client.get(url, headers=self.site.bearer()))

    def messages(self) -> None:
        """Messages over consecutive WebSockets, as notebooks reconnect."""
        with contextlib.suppress(ConnectionClosed), self.site.websocket() as channel:
            self.connected += 1
            while not self.over.is_set():
                channel.send("next")
                self.numbers.append(int(channel.recv(timeout=20)))
                self.over.wait(0.2)

    def follow(self, path: str, take: Callable[[str, str], None]) -> Callable[[], None]:
        """Read an event stream, resuming after the last event."""
        last = ""

        def read() -> None:
            nonlocal last
            headers = {**self.site.bearer(), "Accept": "text/event-stream"}
            if last:
                headers["Last-Event-ID"] = last
            with (
                contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout),
                self.site.client() as client,
                client.stream("GET", path, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    answer.read()
                self.count(path.rpartition("/v1/")[2].split("/")[0] + " stream", answer)
                number = ""
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "id":
                        number = value
                    elif name == "data" and number:
                        take(number, value)
                        last, number = number, ""
                    if self.over.is_set():
                        return

        return read


def test_rolling_restart_is_invisible(site: Site) -> None:
    ada, address = site.ada, site.address
    made = ada.create("counting", "tiny", name="kept")
    site.workspace = made["id"]
    ada.wait(made["id"], "running", limit_s=LIMIT_S)
    with httpx.Client(
        transport=LoopbackTransport(), base_url=address.origin(made["id"]), headers=site.bearer(), timeout=20
    ) as client:
        eventually(lambda: client.get("/").is_success, limit_s=60, what="the app opens")
    before = ada.json("GET", "events?sort=-id&page_size=1")["results"][0]["id"]

    load = Load(site)
    events = load.follow("/api/v1/events/stream", lambda number, _: load.events.append(int(number)))
    logs = load.follow(
        f"/api/v1/workspaces/{made['id']}/logs/stream", lambda _, data: load.lines.append(data)
    )
    loops = [
        (load.pages, 0.1), (load.rest, 0.1), (load.writes, 2.0), (load.app, 0.2), (load.messages, 0.5),
        (events, 0.2), (logs, 0.2),
    ]  # fmt: skip
    threads = [threading.Thread(target=load.run, args=loop, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    eventually(lambda: len(load.made) > 1, limit_s=30, what=lambda: f"load: {load.problems}")
    began = load.events[0] if load.events else before
    for host in site.hosts:
        host.restart()
        time.sleep(SETTLED_S)
    wait_until_quiet(ada, load)
    load.over.set()
    for thread in threads:
        thread.join(timeout=60)
    print(json.dumps(load.counts), len(load.numbers), "messages on", load.connected, "connections")
    assert load.problems == []
    assert not any(thread.is_alive() for thread in threads)
    assert all(load.counts.get(what, 0) > 5 for what in ("page", "rest", "app"))
    assert load.counts["create"] == load.counts["delete"] > 2
    # The app lost nothing, although streams and WebSocket were closed at least once.
    assert load.numbers == sorted(set(load.numbers)) and load.connected > 1
    assert load.counts["events stream"] > 1
    expected = [row["id"] for row in all_events(ada, began)]
    assert load.events == [began, *expected] if load.events and load.events[0] == began else expected
    logged = [int(number) for number in re.findall(r"number (\d+)", "\n".join(load.lines))]
    assert logged == list(range(logged[0], logged[-1] + 1)) and len(logged) > len(load.numbers) / 2


def wait_until_quiet(ada: Api, load: Load) -> None:
    """Stop writing, and wait until the reader has the newest event."""
    load.written.set()
    time.sleep(SETTLED_S)
    for each in load.made:
        ada.wait(each, "terminated", limit_s=LIMIT_S)

    def look() -> bool:
        newest: int = ada.json("GET", "events?sort=-id&page_size=1")["results"][0]["id"]
        return bool(load.events) and load.events[-1] >= newest

    eventually(look, limit_s=60, what=lambda: f"the stream has the newest event: {load.problems}")


def all_events(ada: Api, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while rows := ada.json("GET", f"events?after={found[-1]['id'] if found else after}&page_size=200")[
        "results"
    ]:
        found += rows
    return found
