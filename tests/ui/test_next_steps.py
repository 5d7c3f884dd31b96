"""In a real browser: back from a notebook, lost connections, refreshed figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace, WorkspaceStatus
from tests.suite.choice import quick_of

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
Make = Callable[..., Workspace]
PAGE_OF_WORKSPACE = re.compile(r"/workspaces/[0-9a-f-]{36}/$")


def reach_workspaces(page: Page, reached: bool) -> None:
    """Answer the reachability probe like the front door, or fail like a browser without `*.localhost`."""
    allowed = {"Access-Control-Allow-Origin": "*"}
    page.route(
        re.compile(r"^http://probe\.localhost"),
        lambda route: route.fulfill(status=204, headers=allowed) if reached else route.abort(),
    )


def started(page: Page) -> Workspace:
    """Start a workspace from the form; its notebook opens in the same window."""

    def notebook(route: Route) -> None:
        route.fulfill(status=200, content_type="text/html", body="<!doctype html><h1>Notebook</h1>")

    reach_workspaces(page, True)
    page.route("**/open/", notebook)
    page.goto("/workspaces/new/")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"\?open=1$"))
    made = Workspace.objects.get()
    Workspace.objects.filter(pk=made.pk).update(state=State.RUNNING, ready_at=timezone.now())
    page.get_by_role("heading", name="Notebook").wait_for(timeout=20_000)
    return made


def test_back_from_a_notebook_shows_its_workspace_without_a_second_start(
    visit: Visit, alice: User, team: Team, local_pool: Pool
) -> None:
    # Leaving a page aborts the requests of its parts.
    page = visit(alice, expected=("htmx:sendError",))
    made = started(page)
    page.go_back()
    page.get_by_role("heading", name=made.name, exact=True).wait_for()
    assert PAGE_OF_WORKSPACE.search(page.url), "without ?open=1, which would lead away again"
    # Browsers may skip a page without interaction: the form behind it redirects to the same workspace.
    page.go_back()
    page.get_by_role("heading", name=made.name, exact=True).wait_for()
    assert page.url.endswith(f"/workspaces/{made.pk}/")
    assert Workspace.objects.count() == 1


@pytest.mark.parametrize(
    "away", quick_of(["offline", "no web process"], ["offline"], "the page cannot tell the two apart")
)
def test_failed_request_is_reported_and_recovers(
    visit: Visit, alice: User, workspace_in: Make, away: str
) -> None:
    for name in ("alpha", "beta"):
        workspace_in("stopped", alice, name=name)
    page = visit(alice, expected=("htmx:sendError",))
    page.goto("/")
    search = page.get_by_label("Search by name")

    def abort(route: Route) -> None:
        if away == "offline":
            route.abort("internetdisconnected")
        else:
            route.fulfill(status=502, body="Bad Gateway")

    page.route("**/*q=*", abort)
    search.fill("bet")
    banner = page.get_by_text("Berth is not reachable. Your input is kept.")
    banner.wait_for(state="visible")
    assert search.input_value() == "bet"
    again = page.get_by_role("button", name="Try again")
    again.wait_for(state="visible")
    page.unroute_all(behavior="wait")
    again.evaluate("button => button.click()")
    page.get_by_role("heading", name="alpha").wait_for(state="detached")
    banner.wait_for(state="hidden")


def test_figures_of_a_running_workspace_refresh_and_keep_the_focus(
    visit: Visit, alice: User, workspace_in: Make, settings: object
) -> None:
    settings.HEARTBEAT_S = 1  # type: ignore[attr-defined]
    workspace = workspace_in(
        "running", alice, status__heartbeat_at=timezone.now(), status__activity={"kernels": {"count": 1}}
    )
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    page.locator("#activity dd", has_text=re.compile("^1$")).wait_for()
    page.locator("#act-stop").focus()
    WorkspaceStatus.objects.filter(workspace=workspace).update(activity={"kernels": {"count": 7}})
    page.locator("#activity dd", has_text=re.compile("^7$")).wait_for()
    page.wait_for_function("document.activeElement.id === 'act-stop'")


def test_chosen_size_survives_a_reload(visit: Visit, alice: User, team: Team, local_pool: Pool) -> None:
    page = visit(alice)
    page.goto("/workspaces/new/")
    page.get_by_label("Large CPU").check()
    page.wait_for_url(re.compile(r"flavor=cpu-large"))
    page.reload()
    assert page.get_by_label("Large CPU").is_checked()
    page.goto("/teams/")
    page.go_back()
    assert page.get_by_label("Large CPU").is_checked()


def test_open_explains_unreachable_workspaces(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("running", alice)
    page = visit(alice)
    reach_workspaces(page, False)
    opened: list[str] = []
    page.context.on("page", lambda other: opened.append(other.url))
    for path, link in (
        ("/", f"#open-{workspace.pk}"),
        (f"/workspaces/{workspace.pk}/", "#act-open"),
        # Automatically, too.
        (f"/workspaces/{workspace.pk}/?open=1", "#act-open"),
    ):
        page.goto(path)
        note = page.get_by_role("alert").filter(has_text="Workspaces do not open in this browser.")
        note.wait_for()
        page.locator(link).click()
        assert note.evaluate("note => note === document.activeElement")
    assert opened == [] and "/open/" not in page.url

    reach_workspaces(page, True)
    page.route("**/open/", lambda route: route.fulfill(body="<h1>Notebook</h1>", content_type="text/html"))
    note.get_by_role("link", name="Check again").click()
    with page.context.expect_page() as other:
        page.locator("#act-open").click()
    other.value.wait_for_load_state()
    assert not note.is_visible()
