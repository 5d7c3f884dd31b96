"""Attack: a connection opened before access was revoked must not continue afterwards."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.instance import PASSWORD, Berth, eventually

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]
CUT_S = 2.0
SIZE = 1 << 32


@pytest.fixture(scope="module")
def berth(shared_berth: Berth) -> Berth:
    return shared_berth


@pytest.fixture(scope="module")
def workspace(berth: Berth) -> Iterator[str]:
    """A workspace with more data to send than the test will read."""
    api = berth.api("ada")
    found = api.create("files", "tiny")["id"]
    api.wait(found, "running")
    with (berth.home / "homes" / "lab" / "ada" / "endless").open("wb") as file:
        file.truncate(SIZE)
    eventually(lambda: berth.enter(found, berth.tokens["ada"]) == 200, limit_s=20, what="it is entered")
    yield found
    api.act(found, "delete")
    api.close()


class Reader:
    """Reads the response of one request until it ends or is cut."""

    def __init__(self, berth: Berth, workspace: str, **shown: str) -> None:
        self.read = 0
        self.ended_at: float | None = None
        self.status = 0
        self._over = threading.Event()
        self._url = f"http://127.0.0.1:{berth.port}/endless"
        self._headers = {"Host": berth.host(workspace), "Accept": "text/event-stream", **shown}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        eventually(lambda: self.read > 0 or self.ended_at is not None, limit_s=20, what="it is read")

    def _run(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", self._url, headers=self._headers, timeout=20) as answer,
        ):
            self.status = answer.status_code
            for part in answer.iter_raw(65536):
                self.read += len(part)
                if self._over.wait(0.02):
                    break
        self.ended_at = time.monotonic()

    def cut_after(self, began: float) -> float:
        found: float = eventually(lambda: self.ended_at, limit_s=20, what="it is cut")
        assert 0 < self.read < SIZE
        return found - began

    def close(self) -> None:
        self._over.set()
        self._thread.join(30)


@contextlib.contextmanager
def reading(berth: Berth, workspace: str, **shown: str) -> Iterator[Reader]:
    found = Reader(berth, workspace, **shown)
    try:
        assert found.status == 200 and found.ended_at is None
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def signed_in(berth: Berth) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://localhost:{berth.port}", timeout=20) as browser:
        post(browser, "/sign-in/", username="ada", password=PASSWORD)
        yield browser


def post(browser: httpx.Client, path: str, **fields: str) -> None:
    page = browser.get("/sign-in/" if path == "/sign-in/" else "/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None
    answer = browser.post(path, data={**fields, "csrfmiddlewaretoken": token[1]})
    assert answer.status_code in {200, 302}, answer.text


def entered(browser: httpx.Client, berth: Berth, workspace: str) -> dict[str, str]:
    """Return the cookie of the workspace origin."""
    to = browser.get(f"/workspaces/{workspace}/open/").headers["location"]
    answer = httpx.get(
        f"http://127.0.0.1:{berth.port}{httpx.URL(to).raw_path.decode()}",
        headers={"Host": berth.host(workspace)},
    )
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_signing_out_closes_open_connections(berth: Berth, workspace: str) -> None:
    with signed_in(berth) as browser:
        shown = entered(browser, berth, workspace)
        by_token = {"Authorization": f"Bearer {berth.tokens['ada']}"}
        with reading(berth, workspace, **shown) as mine, reading(berth, workspace, **by_token) as other:
            began = time.monotonic()
            post(browser, "/sign-out/")
            answered = time.monotonic()
            assert mine.cut_after(began) < CUT_S + (answered - began)
            assert other.ended_at is None


def test_revoking_a_token_closes_its_connections(berth: Berth, workspace: str) -> None:
    api = berth.api("ada")
    made = api.json("POST", "tokens", {"name": "lent", "scopes": ["workspaces:connect"]})
    with reading(berth, workspace, Authorization=f"Bearer {made['secret']}") as lent:
        began = time.monotonic()
        api.json("POST", f"tokens/{made['id']}/revoke")
        answered = time.monotonic()
        assert lent.cut_after(began) < CUT_S + (answered - began)
    api.close()


def test_deactivating_an_account_closes_its_connections(berth: Berth) -> None:
    ben = berth.api("ben")
    found = ben.create("files", "tiny")["id"]
    ben.wait(found, "running")
    with (berth.home / "homes" / "lab" / "ben" / "endless").open("wb") as file:
        file.truncate(SIZE)
    admin = httpx.Client(
        base_url=f"http://127.0.0.1:{berth.port}/api/v1/",
        headers={"Authorization": f"Bearer {berth.manage('create_token', 'admin')}"},
        timeout=20,
    )
    with admin, reading(berth, found, Authorization=f"Bearer {berth.tokens['ben']}") as open_still:
        began = time.monotonic()
        assert admin.post("users/ben/deactivate", json={"note": "left"}).status_code == 200
        answered = time.monotonic()
        assert open_still.cut_after(began) < CUT_S + (answered - began)
    ben.close()
