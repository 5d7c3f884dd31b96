"""An open notebook in a browser while web hosts are restarted.

The tests run in order, in one page that is not reloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests import instance
from tests.e2e.conftest import FAILED
from tests.e2e.test_browser import DESKTOP, Person
from tests.e2e.web_site import LIMIT_S, Site, running_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("web-hosts-in-a-browser"),
    pytest.mark.slow("three sets of processes, JupyterLab and a browser"),
    pytest.mark.thorough(
        "three sets of processes; `make test` has the end of WebSockets in tests/workspaces/gateway"
    ),
]
LIMIT_MS = LIMIT_S * 1000
KEEP_KERNEL_SOCKETS = """
const Native = window.WebSocket;
window.kernelSockets = [];
window.WebSocket = class extends Native {
  constructor(...values) {
    super(...values);
    if (new URL(this.url).pathname.endsWith("/channels")) {
      window.kernelSockets.push(this);
    }
  }
};
"""
KEEP_STATES = """toolbar => {
  window.kernelStates = [];
  const note = () => {
    window.kernelStates.push(toolbar.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status);
  };
  const changes = { subtree: true, childList: true, attributes: true, attributeFilter: ["data-status"] };
  new MutationObserver(note).observe(toolbar, changes);
}"""
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
CELL = (
    "import os, time; [time.sleep(0.1) for _ in iter(lambda: os.path.exists('wait'), False)]; "
    "count = globals().get('count', 0) + 1; print('run', count)"
)


class Notebook:
    """A notebook of one cell, which counts its runs. The cell waits while the file `hold` exists."""

    def __init__(self, person: Person, hold: Path) -> None:
        self.person, self.page, self.hold = person, person.page, hold
        self.runs = 0
        self._state = self.page.locator(f"{PANEL} .jp-Notebook-ExecutionIndicator")

    def open(self) -> None:
        self.page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
        self.page.locator(f"{PANEL} .jp-CodeCell .cm-content").click()
        self.page.keyboard.insert_text(CELL)
        self.run()
        self.page.locator(f"{PANEL} .jp-Toolbar").first.evaluate(KEEP_STATES)

    def run(self) -> None:
        """Run the cell. Its kernel must be the one of the runs before."""
        self.connected()
        self.begin()
        self.finish()

    def begin(self) -> None:
        self.page.locator(f"{PANEL} .jp-CodeCell .cm-content").click()
        self.page.keyboard.press("Control+Enter")
        self.runs += 1

    def finish(self) -> None:
        output = self.page.locator(f"{PANEL} .jp-OutputArea-output")
        expect(output).to_have_text(f"run {self.runs}", timeout=LIMIT_MS)

    def begin_and_hold(self) -> None:
        """Run the cell until the kernel is busy. The cell continues after `hold.unlink()`."""
        self.connected()
        self.hold.touch()
        self.begin()
        expect(self._state).to_have_attribute("data-status", "busy", timeout=LIMIT_MS)

    def connected(self) -> None:
        """Wait until the page shows that the kernel can be used."""
        expect(self._state).to_have_attribute("data-status", "idle", timeout=LIMIT_MS)

    def sockets(self) -> int:
        """How many WebSockets to a kernel the page has opened."""
        number: int = self.page.evaluate("window.kernelSockets.length")
        return number

    def states(self) -> set[str]:
        """The states of the kernel that the page has shown since it was opened. Fails after a reload."""
        return set(self.page.evaluate("window.kernelStates"))

    def during(self, *actions: Callable[[], None]) -> None:
        """Run these at once, while the page stays open."""
        with ThreadPoolExecutor() as pool:
            jobs = [pool.submit(action) for action in actions]
            while not all(job.done() for job in jobs):
                self.page.wait_for_timeout(100)
        for job in jobs:
            job.result()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    environment = instance.need_notebook_environment()
    with running_site(tmp_path_factory.mktemp("hosts"), environment=environment) as found:
        yield found


@pytest.fixture(scope="module")
def opened(site: Site, browser: Browser) -> Iterator[Notebook]:
    ada = Person(browser, site.address, "ada", "web-hosts", color_scheme="light", **DESKTOP)  # type: ignore[arg-type]
    try:
        ada.context.add_init_script(KEEP_KERNEL_SOCKETS)
        ada.page.set_default_timeout(LIMIT_MS)
        ada.sign_in()
        ada.start_new("jupyterlab")
        ada.arrive()
        notebook = Notebook(ada, site.node.folder.home / "homes" / "lab" / "ada" / "wait")
        notebook.open()
        yield notebook
    finally:
        ada.context.close()


@pytest.fixture
def notebook(opened: Notebook, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    yield opened
    if request.node.stash.get(FAILED, False):
        opened.person.testify()


def test_running_cell_and_kernel_survive_a_rolling_restart(site: Site, notebook: Notebook) -> None:
    before = notebook.sockets()
    for host in site.hosts:
        notebook.begin_and_hold()
        notebook.during(host.restart)
        notebook.hold.unlink()
        notebook.finish()
        notebook.run()
    # One of the hosts had its WebSocket.
    assert notebook.sockets() > before
    assert "disconnected" not in notebook.states()
    expect(notebook.page.locator(".jp-Dialog")).to_have_count(0)
    notebook.person.shot("restarted")


def test_disconnected_kernel_is_reconnected(notebook: Notebook) -> None:
    """As after a proxy that closes WebSockets with 1000 or 1001."""
    notebook.page.evaluate("window.kernelSockets.at(-1).close(1000)")
    notebook.page.wait_for_function("window.kernelStates.includes('disconnected')")
    # Instead of waiting for the next poll of Berth's extension.
    notebook.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    notebook.run()


def test_unreachable_portal_is_not_reported_as_a_dead_kernel(site: Site, notebook: Notebook) -> None:
    a, b = site.hosts
    # JupyterLab shows once that the connection is lost.
    dialog = notebook.page.locator(".jp-Dialog")
    notebook.page.add_locator_handler(dialog, lambda shown: shown.get_by_role("button").last.click())
    notebook.during(b.stop)
    notebook.run()
    # Without any host that works, the load balancer answers itself.
    with notebook.page.expect_response(
        lambda answer: (
            answer.status in (502, 503)
            and re.fullmatch("/api/kernels/[0-9a-f-]+", urlsplit(answer.url).path) is not None
        )
    ):
        a.kill("gateway")
    notebook.during(a.restart, b.start)
    # The kernel of a connection that JupyterLab takes for dead stays disconnected.
    notebook.run()
