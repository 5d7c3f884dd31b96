"""Actions of people and programs in a recorded workspace."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from tests.reclaim.recording.places import Kernel, Marimo, Place, Terminal


def nothing(_place: Place) -> None:
    """Do nothing."""


def cell(code: str) -> Callable[[Place], None]:
    def act(place: Place) -> None:
        kernel = Kernel(place)
        kernel.finish("1")
        kernel.run(code)

    return act


def cells(code: str, every_s: float, times: int) -> Callable[[Place], None]:
    def act(place: Place) -> None:
        kernel = Kernel(place)
        for _ in range(times):
            kernel.finish(code)
            time.sleep(every_s)

    return act


def terminal(*lines: str) -> Callable[[Place], None]:
    return lambda place: Terminal(place).type(*lines)


def closed_terminal(*lines: str) -> Callable[[Place], None]:
    def act(place: Place) -> None:
        Terminal(place).type(*lines)
        time.sleep(3)
        with place.http as connection:
            for info in connection.http.get("/api/terminals").json():
                connection.http.delete(f"/api/terminals/{info['name']}").raise_for_status()

    return act


def typed_again_and_again(place: Place) -> None:
    shell = Terminal(place)
    for _ in range(9):
        shell.type("ls")
        time.sleep(20)


def abandoned_kernel(place: Place) -> None:
    with place.http as connection:
        connection.http.post("/api/kernels", json={"name": "python3"}).raise_for_status()


def edits_a_notebook(place: Place) -> None:
    """Edit and save a notebook with a kernel, as JupyterLab does."""
    with place.http as connection:
        for number in range(8):
            cell = {"cell_type": "markdown", "metadata": {}, "source": f"Draft {number}"}
            content = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
            body = {"type": "notebook", "format": "json", "content": content}
            connection.http.put("/api/contents/draft.ipynb", json=body).raise_for_status()
            if number == 0:
                session = {
                    "path": "draft.ipynb",
                    "name": "",
                    "type": "notebook",
                    "kernel": {"name": "python3"},
                }
                connection.http.post("/api/sessions", json=session).raise_for_status()
            time.sleep(30)


def stands_at_a_breakpoint(place: Place) -> None:
    kernel = debugged(place)
    kernel.run("x = 1\ny = x + 1\nprint(y)")


def debugged(place: Place) -> Kernel:
    """Attach the debugger of JupyterLab to a kernel, with a breakpoint in the next cell."""
    kernel = Kernel(place)
    kernel.finish("1")
    code = "x = 1\ny = x + 1\nprint(y)"
    kernel.debug("initialize", {"clientID": "recording", "adapterID": "", "pathFormat": "path"}, 1)
    kernel.debug("attach", {}, 2)
    source = kernel.debug("dumpCell", {"code": code}, 3)["body"]["sourcePath"]
    where = {"source": {"path": source}, "breakpoints": [{"line": 2}], "sourceModified": False}
    kernel.debug("setBreakpoints", where, 4)
    kernel.debug("configurationDone", {}, 5)
    return kernel


def debugger_was_left(place: Place) -> None:
    kernel = debugged(place)
    kernel.debug("disconnect", {"restart": False, "terminateDebuggee": False}, 6)
    kernel.finish("1")


def marimo_cell(code: str) -> Callable[[Place], None]:
    return lambda place: Marimo(place).run(code)


def marimo_small_cells(place: Place) -> None:
    notebook = Marimo(place)
    for number in range(10):
        notebook.run(f"sum(range({number}))")
        time.sleep(20)


def marimo_terminal(*lines: str) -> Callable[[Place], None]:
    def act(place: Place) -> None:
        channel = place.websocket("/terminal/ws")
        time.sleep(3)
        for line in lines:
            time.sleep(2)
            channel.send(line + "\r")

    return act


def agent_is_lost(then: Callable[[Place], None]) -> Callable[[Place], None]:
    """Suspend the agent for good, so that no more reports arrive."""

    def act(place: Place) -> None:
        then(place)
        time.sleep(60)
        place.signal_agent(signal.SIGSTOP)

    return act


def agent_comes_back(place: Place) -> None:
    time.sleep(20)
    place.signal_agent(signal.SIGSTOP)
    time.sleep(160)
    place.signal_agent(signal.SIGCONT)


IDLE_FIGURES = {
    "kernels": {"count": 0, "busy": 0, "last_activity": None},
    "terminals": {"count": 0, "last_activity": None},
    "cpu_seconds": 1.0,
    "jobs": 0,
}


def forged(figures: object, status: int, **more: str) -> Callable[[Place], None]:
    """Send forged heartbeats from inside the workspace, besides those of the agent."""

    def act(place: Place) -> None:
        Terminal(place).type("sleep 3600")
        for _ in range(40):
            answer = place.forge(figures, **more)
            assert answer == status, answer
            time.sleep(4)

    return act


def pretends_to_work(place: Place) -> None:
    for _ in range(40):
        assert place.forge({**IDLE_FIGURES, "jobs": 3}) == 200
        time.sleep(4)


def vscode_terminal(*lines: str) -> Callable[..., None]:
    def act(_place: Place, page: Any) -> None:
        page.keyboard.press("Control+Backquote")
        page.locator(".xterm-helper-textarea").first.wait_for(state="attached", timeout=120_000)
        page.wait_for_timeout(8_000)
        page.locator(".xterm-screen").first.click()  # another panel may have taken the focus meanwhile
        for line in lines:
            page.keyboard.type(line)
            page.keyboard.press("Enter")
            page.wait_for_timeout(2_000)

    return act


def only_a_tab(_place: Place, _page: Any) -> None:
    """Keep the page open without using it."""
