"""Update the screenshots of the documents: `python -m tests.documents.screenshots`, or `make screenshots`.

Starts its own instance with a simulated pool and writes `docs/images/`. Pictures show “simulated” wherever
the portal does. Needs Chromium and the notebook environment.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import ViewportSize, sync_playwright

from tests import instance
from tests.browser import CHROMIUM_ARGS, chromium_path, sign_in
from tests.instance import Api, Berth, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SIZE: ViewportSize = {"width": 1280, "height": 820}
NODES, GPUS = 4, 8
SHOTS = ("home", "new", "workspace", "queue", "gpus")


def main() -> int:
    chromium = chromium_path()
    environment = instance.notebook_environment()
    if chromium is None or environment is None:
        print("Needed: Chromium, and the notebook environment (make notebook).", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        instance.running(Path(folder), environment=environment) as berth,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        workspace_id = _work(berth)
        _take(browser, berth, workspace_id)
        browser.close()
    return 0


def _work(berth: Berth) -> str:
    """Create the work of two team members; return the id of ada's open notebook."""
    size = ("--nodes", str(NODES), "--gpus", str(GPUS), "--model", "H100")
    berth.manage("add_simulated_pool", *size, "--slug", "h100", "--name", "Training")
    admin = Api(berth, berth.manage("create_token", "admin"))
    # Programs started by tests are hidden.
    admin.json("DELETE", "templates/files")
    admin.json("DELETE", "flavors/tiny")
    ada, ben = berth.api("ada"), berth.api("ben")
    notebook = str(ada.create("jupyterlab", "cpu-small", name="churn-analysis")["id"])
    ada.wait(notebook, "running")
    for api, number, name in (
        (ben, 8, "pretraining"),
        (ben, 8, "pretraining-long"),
        (ben, 4, "distillation"),
        (ada, 1, "evaluation"),
        (ada, 1, "fine-tuning"),
        (ben, 8, "scaling"),
        (ada, 8, "ablation"),
        (ben, 8, "scaling-2"),
        (ada, 4, "sweep"),
    ):
        api.create("jupyterlab", f"h100-h100-x{number}", name=name)
    eventually(lambda: _settled(ada), limit_s=60, what="each runs or waits")
    for api in (admin, ada, ben):
        api.close()
    return notebook


def _settled(api: Api) -> bool:
    rows: list[dict[str, Any]] = api.json("GET", "workspaces")["results"]
    return {row["state"] for row in rows} <= {"running", "pending"}


def _take(browser: Browser, berth: Berth, workspace_id: str) -> None:
    with _page(browser, berth, "ada") as page:
        _shot(page, "/", "home")
        _shot(page, "/workspaces/new/?flavor=cpu-small", "new")
        _shot(page, f"/workspaces/{workspace_id}/", "workspace")
        _shot(page, "/queue/", "queue")
        _shot(page, "/gpus/", "gpus")


@contextmanager
def _page(browser: Browser, berth: Berth, name: str) -> Iterator[Page]:
    """A page signed in as the user."""
    context = browser.new_context(base_url=berth.url, viewport=SIZE, color_scheme="light")
    page = context.new_page()
    sign_in(page, berth.url, name)
    yield page
    context.close()


def _shot(page: Page, path: str, name: str) -> None:
    page.goto(path)
    page.locator("main h1").first.wait_for()
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")
    print(f"docs/images/{name}.png", flush=True)


if __name__ == "__main__":
    sys.exit(main())
