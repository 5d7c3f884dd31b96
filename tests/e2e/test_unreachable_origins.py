"""Opening workspaces through a tunnel on another port, or in a browser without `*.localhost`."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser import CHROMIUM_ARGS, chromium_path, sign_in
from tests.e2e.conftest import SHOTS
from tests.instance import Api, Berth

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough(
        "a whole Berth with a browser; `make test` has the note in tests/ui/test_next_steps"
    ),
]
RULES = {"safari": "MAP *.localhost ~NOTFOUND", "tunnel": "MAP *.localhost 127.0.0.1:1"}
"""How names of workspaces resolve: not at all, or to a computer on whose port nothing listens."""


@pytest.fixture
def tunnel(berth: Berth) -> Iterator[str]:
    """The portal's address behind `ssh -L` with another port."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def connect(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", berth.port)) as far:
            back = threading.Thread(target=copy, args=(far, near))
            back.start()
            copy(near, far)
            back.join()

    def forward() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threads.append(threading.Thread(target=connect, args=(near,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=forward)]
        threads[0].start()
        yield f"http://localhost:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize("place", RULES)
def test_open_page_explains_unreachable_workspace_origins(
    berth: Berth, ada: Api, browser: Browser, tunnel: str, place: str
) -> None:
    row = ada.create("jupyterlab", "cpu-small", name="unreachable")
    ada.wait(row["id"], "running", limit_s=120)
    args = [*CHROMIUM_ARGS, f"--host-resolver-rules={RULES[place]}"]
    chromium = browser.browser_type.launch(executable_path=chromium_path(), args=args)
    try:
        page = chromium.new_page()
        url = tunnel if place == "tunnel" else berth.url
        sign_in(page, url, "ada")
        page.goto(f"{url}/workspaces/{row['id']}/?open=1")
        note = page.get_by_role("alert").filter(has_text="Workspaces do not open in this browser.")
        note.wait_for()
        page.screenshot(path=SHOTS / f"unreachable-{place}.png")
        advice = f"ssh -N -L {berth.port}:localhost:{berth.port} USER@SERVER"
        expect(note).to_contain_text(
            advice if place == "tunnel" else f"Open {berth.url} in Chrome, Edge or Firefox."
        )
    finally:
        chromium.close()
