"""Sessions with traffic through the gateway, or with open connections without traffic."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from typing import Any

from tests.reclaim.recording import acts
from tests.reclaim.recording.places import Kernel, Place
from tests.reclaim.recording.session import KEPT, STOPPED, Session

GOES_ON_S = 240.0
"""Duration of an activity that ends by itself."""
CHUNK = 1_000_000
BYTES_S = 250_000
"""Transfer rate of a file here: a slow line, which needs almost no CPU."""


def upload(place: Place) -> None:
    """Upload a large file in chunks, as JupyterLab does."""
    piece = base64.b64encode(os.urandom(CHUNK)).decode()
    body = {"name": "data.bin", "path": "data.bin", "type": "file", "format": "base64", "content": piece}
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < GOES_ON_S:
        number += 1
        with place.http as connection:
            answer = connection.http.put("/api/contents/data.bin", json={**body, "chunk": number})
            answer.raise_for_status()
        time.sleep(max(0.0, began + number * len(piece) / BYTES_S - time.monotonic()))


def download(place: Place) -> None:
    """Download a large file over a slow connection."""
    Kernel(place).finish("open('data.bin', 'wb').truncate(400_000_000)")
    # The last cell is old when the download is observed.
    time.sleep(5)
    began, got = time.monotonic(), 0
    with place.http as connection, connection.http.stream("GET", "/files/data.bin") as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes(65_536):
            got += len(piece)
            if time.monotonic() - began > GOES_ON_S:
                return
            time.sleep(max(0.0, began + got / BYTES_S - time.monotonic()))


def listen(path: str) -> Callable[[Place], None]:
    """Keep a stream open without data."""

    def act(place: Place) -> None:
        place.websocket(path)

    return act


def idle_notebook(_place: Place, page: Any) -> None:
    """Run a cell in an open notebook, then leave it."""
    page.locator('[data-category="Notebook"]').first.click(timeout=120_000)
    page.locator(".jp-Notebook .cm-content").first.click(timeout=120_000)
    page.keyboard.type("1 + 1")
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-OutputArea-output").first.wait_for(timeout=120_000)


PRINTS = "import time\nwhile True:\n    print('x' * 20_000); time.sleep(0.2)"
SESSIONS = (
    Session(
        "traffic-upload",
        "jupyterlab",
        "A large file goes up over a slow line.",
        KEPT,
        upload,
        goes_on=True,
    ),
    Session(
        "traffic-download",
        "jupyterlab",
        "A large file comes down over a slow line.",
        KEPT,
        download,
        goes_on=True,
    ),
    Session(
        "traffic-kernel-output",
        "jupyterlab",
        "A cell prints without end to somebody who is connected.",
        KEPT,
        acts.cell(PRINTS),
    ),
    Session(
        "traffic-marimo-output",
        "marimo",
        "A cell prints without end to somebody who is connected.",
        KEPT,
        acts.marimo_cell(PRINTS),
    ),
    Session(
        "traffic-event-stream",
        "jupyterlab",
        "Somebody listens to the server's events; there are none.",
        STOPPED,
        listen("/api/events/subscribe"),
    ),
    Session(
        "traffic-quiet-kernel",
        "jupyterlab",
        "Somebody is connected to a kernel that waits.",
        STOPPED,
        acts.cell("1 + 1"),
    ),
    Session(
        "traffic-open-tab",
        "jupyterlab",
        "JupyterLab is open in a tab.",
        STOPPED,
        acts.only_a_tab,
        browser=True,
    ),
    Session(
        "traffic-open-notebook",
        "jupyterlab",
        "A notebook is open in a tab beside its kernel; a cell has run.",
        STOPPED,
        idle_notebook,
        browser=True,
    ),
    Session(
        "traffic-marimo-tab", "marimo", "marimo is open in a tab.", STOPPED, acts.only_a_tab, browser=True
    ),
    Session(
        "traffic-vscode-tab", "vscode", "VS Code is open in a tab.", STOPPED, acts.only_a_tab, browser=True
    ),
)
