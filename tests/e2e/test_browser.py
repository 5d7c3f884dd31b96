"""A user's day: sign in, create, start, work, save, stop, start again; on desktop and phone."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect

from tests.e2e.conftest import FAILED, SHOTS
from tests.instance import Api, Berth, eventually
from tests.populate import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page, Response, Route

pytestmark = [
    pytest.mark.engine,
    pytest.mark.browser,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.thorough(
        "a whole Berth with a browser; `make test` has the pages in tests/ui and notebooks over REST"
    ),
]
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
START_LIMIT_MS = 120_000
LINES_KEPT = 60


def is_worth_reporting(answer: Response) -> bool:
    """Whether a response is worth reporting: not successful static files."""
    return not (answer.ok and answer.request.resource_type in ("stylesheet", "script", "image", "font"))


def chosen(page: Page, field: str, value: str) -> None:
    """Wait until the form of a new workspace shows the effect of a choice, which its URL then contains."""
    page.wait_for_url(re.compile(rf"[?&]{field}={value}(&|$)"))


class Person:
    """A user with their own browser."""

    def __init__(self, browser: Browser, berth: Berth, name: str, shots: str, **options: Any) -> None:
        self.berth, self.name, self._shots = berth, name, shots
        self.context: BrowserContext = browser.new_context(base_url=berth.url, **options)
        self.said: deque[str] = deque(maxlen=LINES_KEPT)
        self._listen()
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)

    def _listen(self) -> None:
        """Record console messages of the pages, for the report of a failed test."""
        on, say = self.context.on, self.said.append
        on("console", lambda line: say(f"{line.type}: {line.text[:300]}"))
        on("weberror", lambda problem: say(f"error: {problem.error}"))
        on("requestfailed", lambda one: say(f"{one.method} {one.url}: {one.failure}"))
        on(
            "response",
            lambda one: (
                say(f"{one.status} {one.request.method} {one.url}") if is_worth_reporting(one) else None
            ),
        )

    def testify(self) -> None:
        """The pages' content and console messages, newest last."""
        for number, page in enumerate(self.context.pages):
            print(f"page {number}: {page.url}")
            with contextlib.suppress(PlaywrightError):
                page.screenshot(path=self.shot_path(f"failed-{number}"))
        print(*self.said, sep="\n")
        self.shot_path("failed").with_suffix(".txt").write_text("\n".join(self.said))

    def sign_in(self) -> None:
        self.page.goto("/")
        self.page.fill("#id_username", self.name)
        self.page.fill("#id_password", PASSWORD)
        self.shot("sign-in")
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        # Operators and administrators land on the overview.
        self.page.wait_for_url(re.compile(rf"^{re.escape(self.berth.url)}/(overview/)?$"))

    def start_new(self, template: str) -> None:
        """New, the template, Start; the workspace opens automatically."""
        self.shot("home")
        self.page.get_by_role("link", name=re.compile("^New( workspace)?$")).first.click()
        choice = self.page.locator(f"input[name=template][value={template}]")
        if not choice.is_checked():
            choice.check(force=True)
            chosen(self.page, "template", template)
        self.shot("new")
        self.page.locator("#start").click()
        # The page shows the stages, unless the start is already done.
        self.page.wait_for_url(re.compile(r"/workspaces/[0-9a-f-]+/\?open=1|//ws-"), wait_until="commit")
        with contextlib.suppress(PlaywrightError):  # it may be navigating just now
            self.shot("starting")

    def arrive(self) -> None:
        """Wait for the workspace's own origin."""
        self.page.wait_for_url(re.compile(r"^http://ws-[0-9a-f]{32}\.localhost:"), timeout=START_LIMIT_MS)

    def to_its_page(self, name: str) -> None:
        self.page.goto(self.berth.url)
        self.page.get_by_role("link", name=name, exact=True).click()
        self.page.get_by_role("heading", name=name, exact=True).wait_for()

    def stop_and_start(self) -> None:
        """Stop and start with the buttons of the workspace page."""
        self.shot("running")
        self.page.locator("#act-stop").click()
        self.shot("stop")
        self.page.locator("#stop-dialog").get_by_role("button", name=re.compile("^Stop ")).click()
        start = self.page.locator("#act-start")
        start.wait_for(timeout=START_LIMIT_MS)
        self.shot("stopped")
        start.click()

    def delete(self) -> None:
        self.page.locator("#act-delete").click()
        self.shot("delete")
        self.page.locator("#delete-dialog").get_by_role("button", name=re.compile("^Delete ")).click()
        self.page.wait_for_url(f"{self.berth.url}/")
        self.shot("deleted")

    def shot(self, name: str) -> None:
        self.page.screenshot(path=self.shot_path(name))

    def shot_path(self, name: str) -> Path:
        SHOTS.mkdir(parents=True, exist_ok=True)
        return SHOTS / f"{self._shots}-{name}.png"


@pytest.fixture
def person(
    browser: Browser, berth: Berth, ada: Api, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Person]]:
    """`person("shots", **options)`: ada's browser, with a name for her screenshots."""
    there: list[Person] = []

    def come(shots: str, **options: Any) -> Person:
        there.append(Person(browser, berth, "ada", shots, **options))
        return there[-1]

    yield come
    for one in there:
        if request.node.stash.get(FAILED, False):
            one.testify()
        one.context.close()


def run_a_cell(person: Person, notebook: str) -> None:
    """Open a notebook, run 1+1, and save it under a name."""
    page = person.page
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click(timeout=START_LIMIT_MS)
    cell = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell .cm-content").first
    cell.click()
    # At once, whether or not the kernel is ready.
    page.keyboard.type("1+1")
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output").first
    output.wait_for(timeout=START_LIMIT_MS)
    assert output.inner_text().strip() == "2"
    page.keyboard.press("Control+s")
    page.locator(".jp-Dialog input[type=text]").fill(notebook)
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.locator(".jp-DirListing-item", has_text=notebook).wait_for()


def test_jupyterlab_on_a_desktop(berth: Berth, person: Callable[..., Person]) -> None:
    ada = person("jupyterlab-desktop", color_scheme="light", **DESKTOP)
    ada.sign_in()
    ada.start_new("jupyterlab")
    ada.arrive()
    run_a_cell(ada, "sum.ipynb")
    bar = ada.page.get_by_role("group", name="Workspace")
    assert "jupyterlab" in bar.inner_text()
    ada.shot("cell")
    assert '"2"' in (berth.home / "homes" / "lab" / "ada" / "sum.ipynb").read_text()

    ada.to_its_page("jupyterlab")
    ada.stop_and_start()
    ada.arrive()
    kept = ada.page.locator(".jp-DirListing-item", has_text="sum.ipynb")
    kept.dblclick(timeout=START_LIMIT_MS)
    again = ada.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output").first
    again.wait_for(timeout=START_LIMIT_MS)
    assert again.inner_text().strip() == "2"
    ada.shot("again")

    # The app's token has not reached the browser.
    names = {cookie["name"] for cookie in ada.context.cookies() if "ws-" in cookie["domain"]}
    assert "berth_ws" in names and "berth" not in names
    assert "token" not in ada.page.url
    ada.to_its_page("jupyterlab")
    ada.delete()


def test_cell_run_before_the_kernel_is_ready_waits_for_it(person: Callable[..., Person]) -> None:
    """No second kernel is started."""
    ada = person("jupyterlab-early", color_scheme="light", **DESKTOP)
    ada.sign_in()
    ada.start_new("jupyterlab")
    ada.arrive()
    page = ada.page
    held: list[Route] = []
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.method) if is_session_request(request.url) else None
    )

    def hold_the_first(route: Route) -> None:
        if route.request.method == "POST" and not held:
            held.append(route)
        else:
            route.continue_()

    page.route(is_session_request, hold_the_first)
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click(timeout=START_LIMIT_MS)
    cells = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell")
    while not held:
        page.wait_for_timeout(50)
    cells.first.locator(".cm-content").click()
    page.keyboard.type("1+1")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("2+2")
    page.keyboard.press("Shift+Enter")
    expect(cells.locator(".jp-InputPrompt")).to_have_text(["[*]:", "[*]:", "[ ]:"])
    held[0].continue_()
    expect(page.locator(".jp-OutputArea-output")).to_have_text(["2", "4"], timeout=START_LIMIT_MS)
    assert asked.count("POST") == 1
    ada.shot("early")


def is_session_request(url: str) -> bool:
    """Whether this is JupyterLab's request for a notebook's kernel."""
    return urlsplit(url).path == "/api/sessions"


def test_stop_in_jupyterlab_leads_to_the_workspace_page(person: Callable[..., Person]) -> None:
    """Other JupyterLab tabs lead to the portal too, not to an error."""
    ada = person("jupyterlab-stop", color_scheme="light", **DESKTOP)
    ada.sign_in()
    ada.start_new("jupyterlab")
    ada.arrive()
    bar = ada.page.get_by_role("group", name="Workspace")
    bar.get_by_role("link", name="Berth").wait_for(timeout=START_LIMIT_MS)
    address = bar.get_by_role("link", name="Stop").get_attribute("href")
    assert address and re.fullmatch(re.escape(ada.berth.url) + r"/workspaces/[0-9a-f-]{36}/stop/", address)
    other = ada.context.new_page()
    other.goto(address)
    other.get_by_role("button", name=re.compile("^Stop ")).click()
    ada.page.wait_for_url(address.removesuffix("stop/"), timeout=START_LIMIT_MS)
    ada.page.locator("#act-start").wait_for(timeout=START_LIMIT_MS)
    ada.shot("ended")
    ada.delete()


def test_click_during_a_live_update_counts(person: Callable[..., Person], ada: Api) -> None:
    made = ada.create("files", "tiny", name="clicked")
    ada.wait(made["id"], "running")
    ada.act(made["id"], "stop")
    ada.wait(made["id"], "stopped")
    her = person("clicked", **DESKTOP)
    her.sign_in()
    her.page.clock.install()
    her.page.goto(f"/workspaces/{made['id']}/")
    address = re.compile(rf"/workspaces/{made['id']}/$")
    renewed = her.page.request.get(her.page.url, headers={"HX-Request": "true", "HX-Target": "live"}).text()
    # Answered at once, even if the portal is slower than a click.
    her.page.route(address, lambda route: route.fulfill(body=renewed, content_type="text/html"))
    button = her.page.locator("#act-start")
    button.hover()
    # The page's clock stands meanwhile: a press that lasts is taken for one that was let go elsewhere.
    her.page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
    her.page.mouse.down()
    before = button.element_handle()
    assert before is not None
    # Where the page renews itself meanwhile, that takes the place of this request, which is then aborted.
    her.page.evaluate(
        """() => new Promise((renewed) => {
          document.getElementById("live").addEventListener("htmx:beforeSwap", renewed, { once: true });
          htmx.ajax("get", location.pathname, { source: "#live" }).catch(() => {});
        })"""
    )
    her.page.wait_for_timeout(200)
    assert before.evaluate("button => button.isConnected")
    her.page.unroute(address)
    her.page.clock.resume()
    her.page.mouse.up()
    ada.wait(made["id"], "running")
    ada.act(made["id"], "delete")


def drop(page: Page, target: Locator, *files: Path) -> None:
    """Drag files and folders over the target and drop them, as a file manager does."""
    box = target.bounding_box()
    assert box is not None
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for step in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": step, **where, "data": data})


def test_files_can_be_dropped_into_the_home_of_a_stopped_workspace(
    berth: Berth, person: Callable[..., Person], ada: Api, tmp_path: Path
) -> None:
    made = ada.create("files", "tiny", name="dropped")
    ada.wait(made["id"], "running")
    ada.act(made["id"], "stop")
    ada.wait(made["id"], "stopped")
    folder = tmp_path / "data of a year"
    (folder / "deep").mkdir(parents=True)
    (folder / "ü 100 %.bin").write_bytes(bytes(range(256)) * 4096)
    (folder / "deep" / "b.txt").write_text("b")
    (tmp_path / "dropped.txt").write_text("a")
    her = person("dropped", **DESKTOP)
    her.sign_in()
    her.page.goto(f"/workspaces/{made['id']}/files/")
    zone = her.page.locator("[data-uploads]")
    zone.wait_for()
    drop(her.page, zone, tmp_path / "dropped.txt", folder)
    expect(her.page.locator("[data-sum]")).to_have_text("3 uploaded, 0 not")
    her.shot("uploaded")
    home = berth.home / "homes" / "lab" / "ada"
    assert (home / "dropped.txt").read_text() == "a"
    assert (home / folder.name / "deep" / "b.txt").read_text() == "b"
    assert (home / folder.name / "ü 100 %.bin").read_bytes() == (folder / "ü 100 %.bin").read_bytes()
    # Once more: nothing is replaced unasked, and what is asked for is.
    (tmp_path / "dropped.txt").write_text("again")
    drop(her.page, zone, tmp_path / "dropped.txt")
    her.page.get_by_role("button", name="Replace file dropped.txt").click()
    expect(her.page.locator("[data-sum]")).to_have_text("4 uploaded, 0 not")
    assert (home / "dropped.txt").read_text() == "again"
    her.page.get_by_role("link", name="Reload folder").click()
    her.page.get_by_role("link", name=folder.name).first.wait_for()
    her.shot("listed")


def test_jupyterlab_on_a_phone(person: Callable[..., Person]) -> None:
    ada = person("jupyterlab-phone", color_scheme="dark", **PHONE)
    ada.sign_in()
    ada.start_new("jupyterlab")
    ada.arrive()
    # Notebooks of an earlier test may be open: it is the same home.
    ada.page.locator("#jp-main-dock-panel .jp-MainAreaWidget").first.wait_for(timeout=START_LIMIT_MS)
    ada.shot("lab")
    ada.to_its_page("jupyterlab")
    ada.stop_and_start()
    ada.arrive()


def edit_in_marimo(person: Person, notebook: str) -> None:
    """Create a notebook, run 1+1, and save it under a name."""
    page = person.page
    page.wait_for_load_state("networkidle")
    person.shot("marimo-home")
    with person.context.expect_page() as opened:
        page.get_by_role("link", name=re.compile("new notebook", re.IGNORECASE)).first.click()
    editor = opened.value
    person.page = editor
    cell = editor.locator(".cm-content").first
    cell.click(timeout=START_LIMIT_MS)
    editor.keyboard.type("1+1")
    editor.keyboard.press("Control+Enter")
    output = editor.locator(".output-area").first
    output.wait_for(timeout=START_LIMIT_MS)
    assert output.inner_text().strip() == "2"
    editor.keyboard.press("Control+s")
    dialog = editor.get_by_role("dialog", name="Save notebook")
    name = dialog.get_by_placeholder("filename", exact=True)
    name.fill(notebook)
    # The name as typed, from the suggestions below it: choosing it saves.
    editor.get_by_role("option", name=notebook).first.click()
    dialog.wait_for(state="hidden")
    editor.wait_for_url(f"**/?file={notebook}*")
    person.shot("marimo-saved")


@pytest.mark.parametrize(
    ("shots", "options"),
    [
        ("marimo-desktop", {"color_scheme": "dark", **DESKTOP}),
        ("marimo-phone", {"color_scheme": "light", **PHONE}),
    ],
    ids=["desktop", "phone"],
)
def test_marimo(berth: Berth, person: Callable[..., Person], shots: str, options: dict[str, Any]) -> None:
    ada = person(shots, **options)
    ada.sign_in()
    ada.start_new("marimo")
    ada.arrive()
    first = ada.page
    edit_in_marimo(ada, f"{shots}.py")
    # The editor has the name before the file is there, and marimo empties a file before it writes it anew.
    notebook = berth.home / "homes" / "lab" / "ada" / f"{shots}.py"
    eventually(
        lambda: notebook.is_file() and "1+1" in notebook.read_text(), limit_s=30, what=f"1+1 in {notebook}"
    )
    ada.page.close()
    ada.page = first
    ada.to_its_page("marimo")
    ada.stop_and_start()
    ada.arrive()
    ada.page.get_by_text(f"{shots}.py").first.wait_for(timeout=START_LIMIT_MS)
    ada.shot("again")


def test_terminal_on_a_phone(berth: Berth, person: Callable[..., Person]) -> None:
    """A reload finds the same shell; after a stop there is a new one."""
    ada = person("terminal-phone", color_scheme="light", **PHONE)
    ada.sign_in()
    ada.start_new("terminal")
    ada.arrive()
    home = berth.home / "homes" / "lab" / "ada"

    def run(command: str, said: str) -> None:
        """Type a command that writes to `terminal.txt`, as the screen is a canvas."""
        ada.page.locator(".jp-Terminal-body .xterm-screen").tap(timeout=START_LIMIT_MS)
        ada.page.keyboard.type(f"{command} > terminal.txt\n")
        file = home / "terminal.txt"
        eventually(lambda: file.is_file() and file.read_text().strip() == said, limit_s=60, what=said)

    run("kept=42; echo $((6 * 7))", "42")
    ada.shot("terminal")
    ada.page.reload()
    run("echo again $kept", "again 42")
    ada.page.get_by_role("group", name="Workspace").get_by_role("link", name="Berth").click()
    ada.page.get_by_role("heading", name="terminal", exact=True).wait_for()
    ada.stop_and_start()
    ada.arrive()
    run("echo new${kept:-} $USER", "new ada")
    ada.shot("again")
    ada.to_its_page("terminal")
    ada.delete()
