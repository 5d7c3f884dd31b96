"""Pages in a real browser: accessible, phone to desktop, both themes, live, without JavaScript."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.people.accounts.tokens import create_token
from portal.workspaces import presenters
from portal.workspaces.lifecycle import State
from portal.workspaces.models import QueueEntry, Workspace, WorkspaceStatus
from portal.workspaces.results import driver_reason
from tests.factories import PASSWORD, MembershipFactory, TeamFactory
from tests.suite.choice import quick_of
from tests.ui.conftest import LONG_NAME, LONG_TEAM

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.apart,
    pytest.mark.browser,
    # WhiteNoise reads files synchronously, about which Django's ASGI handler warns.
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
Make = Callable[..., Workspace]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
NARROW = {"width": 320, "height": 640}
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture
def scene(
    visit: Visit, alice: User, team: Team, pool: Pool, make: Make, workspace_in: Make
) -> Iterator[dict[str, str]]:
    """A filled portal: every state, long names, warnings, a token. Returns page names and paths."""
    long_team = TeamFactory(slug="l" * 40, name=LONG_TEAM[:80])
    MembershipFactory(team=long_team, user=alice)
    rows = {state.value: workspace_in(state.value, alice) for state in State}
    rows["long"] = workspace_in("running", alice, name=LONG_NAME, team=long_team)
    Workspace.objects.filter(pk=rows["failed"].pk).update(termination_reason="start_timeout")
    WorkspaceStatus.objects.filter(pk=rows["failed"].pk).update(
        reason=driver_reason("start_timeout", "JupyterLab did not answer. Look at the log.").as_json(),
        log_tail="line " * 80,
    )
    QueueEntry.objects.filter(pk=rows["pending"].pk).update(
        reason=driver_reason("", "Waits until there is room.").as_json()
    )
    simulated = make(alice, "sim-cpu", name="simulated")
    node = pool.nodes.first()
    assert node is not None
    node.warnings = ["bubblewrap is missing: " + "x" * 120 + ". Install it."]
    node.online = False
    node.save()
    create_token(actor=alice, user=alice, name="t" * 80)
    yield {
        "home": "/",
        "home-nothing-found": "/?q=nothing-like-it",
        "all-workspaces": "/workspaces/",
        "queue": "/queue/",
        "new": "/workspaces/new/",
        **{f"workspace-{name}": f"/workspaces/{row.pk}/" for name, row in rows.items()},
        "workspace-simulated": f"/workspaces/{simulated.pk}/",
        "stop": f"/workspaces/{rows['running'].pk}/stop/",
        "delete": f"/workspaces/{rows['running'].pk}/delete/",
        "teams": "/teams/",
        "team": "/teams/vision/",
        "long-team": f"/teams/{long_team.slug}/",
        "remove": "/teams/vision/members/bob/revoke/",
        "tokens": "/account/tokens/",
        "account": "/account/",
        "pools": "/pools/",
        "pool": f"/pools/{pool.slug}/",
        "local-pool": "/pools/this-machine/",
        "documents": "/docs/",
        "document": "/docs/gpus/",
        "documents-search": "/docs/search/?q=why+does+it+wait",
        "template-form": "/catalog/templates/new/?team=vision&preset=jupyterlab",
        "missing": "/nowhere/",
    }


ALL_RULES = {"type": "tag", "values": AXE_TAGS}
# Everything that a theme can change.
COLOUR_RULES = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}


def violations(page: Page, rules: dict[str, Any] = ALL_RULES) -> list[str]:
    """Return axe violations as lines with their places."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"runOnly": rules})
    return [
        f"{item['id']}: {node['html'][:160]} ({node['failureSummary'].splitlines()[-1].strip()})"
        for item in found.response["violations"]
        for node in item["nodes"]
    ]


def too_small(page: Page) -> list[str]:
    """Return targets below 24 × 24 CSS pixels, except links within a sentence."""
    script = """() => [...document.querySelectorAll('a, button, input, select, summary')]
      .filter(e => e.checkVisibility() && !e.closest('.sr, p, dd, td, label, footer, .note, .doc li'))
      .map(e => [e, e.getBoundingClientRect()])
      .filter(([e, r]) => r.width > 1 && (r.width < 24 || r.height < 24) && !e.classList.contains('skip'))
      .map(([e, r]) => `${e.outerHTML.slice(0, 80)} ${r.width} x ${r.height}`)"""
    found: list[str] = page.evaluate(script)
    return found


# Fonts with wider and narrower letters, since fonts differ between machines.
FONTS = {
    "own": "",
    "wide": "* { letter-spacing: 0.09em !important; }",
    "narrow": "* { letter-spacing: -0.05em !important; }",
}


def overflows(page: Page) -> list[str]:
    """Return the `FONTS` with which the page is wider than its window."""
    script = """fonts => {
      const sheet = new CSSStyleSheet(), root = document.documentElement;
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      const wide = Object.entries(fonts).filter(([, rule]) => {
        sheet.replaceSync(rule);
        return root.scrollWidth > root.clientWidth;
      });
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter(each => each !== sheet);
      return wide.map(([name]) => name);
    }"""
    found: list[str] = page.evaluate(script, FONTS)
    return found


@pytest.mark.thorough("axe on every page; `make test` has sign-in and errors")
def test_every_page_is_accessible_and_fits(visit: Visit, alice: User, scene: dict[str, str]) -> None:
    page = visit(alice, color_scheme="light")
    wrong: list[str] = []
    for name, path in scene.items():
        page.set_viewport_size(DESKTOP)
        page.goto(path)
        wrong += [f"{name}: {line}" for line in violations(page) + too_small(page)]
        if page.locator(".btn.primary:visible").count() > 1:
            wrong.append(f"{name}: more than one primary button")
        for size in (DESKTOP, PHONE, NARROW):
            page.set_viewport_size(size)
            wrong += [f"{name}: wider than {size['width']} px, {font} font" for font in overflows(page)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough("every page again; `make test` has the light theme")
def test_every_page_has_sufficient_contrast_in_the_dark_theme(
    visit: Visit, alice: User, scene: dict[str, str]
) -> None:
    page = visit(alice, color_scheme="dark")
    wrong: list[str] = []
    for name, path in scene.items():
        page.goto(path)
        wrong += [f"{name}: {line}" for line in violations(page, COLOUR_RULES)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("theme", quick_of(["light", "dark"], ["light"], "the same pages in the dark"))
def test_sign_in_and_error_pages_are_accessible(visit: Visit, alice: User, theme: str) -> None:
    page = visit(None, color_scheme=theme, viewport=PHONE)
    page.goto("/sign-in/")
    assert violations(page) == []
    page.get_by_label("Name", exact=True).fill("alice")
    page.get_by_label("Password").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Wrong name or password").wait_for()
    assert violations(page) == []
    assert not overflows(page)
    page.goto("/nowhere/")
    page.get_by_role("heading", name="Page not found").wait_for()
    assert violations(page) == []


def test_two_clicks_from_sign_in_to_a_start(
    visit: Visit, alice: User, team: Team, local_pool: Pool, make: Make
) -> None:
    make(alice, "cpu-large")
    page = visit(None)
    page.goto("/")
    page.get_by_label("Name", exact=True).fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.get_by_role("button", name="Start JupyterLab · Large CPU · Vision").click()
    page.wait_for_url(re.compile(r"/workspaces/[0-9a-f-]{36}/\?open=1$"))
    page.get_by_text("The workspace opens here").wait_for()
    assert Workspace.objects.count() == 2


def test_a_double_click_starts_one_workspace(visit: Visit, alice: User, team: Team, local_pool: Pool) -> None:
    page = visit(alice)
    page.goto("/workspaces/new/")
    page.get_by_role("button", name="Start", exact=True).dblclick()
    page.wait_for_url(re.compile(r"/workspaces/[0-9a-f-]{36}/"))
    assert Workspace.objects.count() == 1


def test_form_updates_with_the_choice_by_keyboard(
    visit: Visit, alice: User, team: Team, local_pool: Pool
) -> None:
    page = visit(alice)
    page.goto("/workspaces/new/")
    name = page.get_by_label("Name", exact=True)
    assert name.input_value() == "jupyterlab"
    page.locator('input[name="template"]:checked').focus()
    page.keyboard.press("ArrowDown")
    page.locator("#summary").get_by_text("marimo", exact=True).wait_for()
    assert name.input_value() == "marimo"
    # The focus is kept.
    page.wait_for_function("document.activeElement.value === 'marimo'")
    page.locator('input[name="flavor"]:checked').focus()
    page.keyboard.press("ArrowDown")
    page.locator("#summary dd", has_text="Large CPU").wait_for()
    # Also across the swap, after which htmx restores the focus.
    page.wait_for_function("document.activeElement.value === 'cpu-large'")


def test_workspace_page_updates_and_keeps_the_focus(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("provisioning", alice)
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    page.get_by_text("Starting", exact=True).first.wait_for()
    page.locator("#act-delete").focus()
    Workspace.objects.filter(pk=workspace.pk).update(state=State.RUNNING, ready_at=workspace.requested_at)
    page.get_by_role("link", name=re.compile("Open JupyterLab")).wait_for()
    said = page.locator("#live [role=status]").text_content()
    assert said is not None
    assert "Running. Ready." in said
    page.wait_for_function("document.activeElement.id === 'act-delete'")
    assert page.locator(".stage.done").count() == 5


def test_log_link_appears_when_the_log_exists(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("provisioning", alice, generation=0)
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    page.get_by_text("The log starts when the workspace is placed").wait_for()
    Workspace.objects.filter(pk=workspace.pk).update(generation=1)
    page.get_by_role("link", name="Show the last lines").wait_for()
    assert page.locator("#log-title").count() == 1


def test_slow_response_is_not_aborted_by_the_next_poll(
    visit: Visit, alice: User, workspace_in: Make, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response slower than the polling interval is still shown."""
    settings.HEARTBEAT_S = 1
    workspace = workspace_in("running", alice)
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    page.get_by_role("link", name=re.compile("Open JupyterLab")).wait_for()
    detail = presenters.detail

    def slowly(*args: Any, **kwargs: Any) -> presenters.WorkspaceDetail:
        time.sleep(2.5)
        return detail(*args, **kwargs)

    monkeypatch.setattr(presenters, "detail", slowly)
    Workspace.objects.filter(pk=workspace.pk).update(state=State.STOPPED)
    page.get_by_role("button", name="Start").wait_for()


def test_lost_live_connection_is_shown_and_recovers(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("running", alice)
    page = visit(alice)
    broken = {"yes": True}

    def gate(route: Any) -> None:
        if broken["yes"]:
            route.abort()
        else:
            route.continue_()

    page.route("**/events/", gate)
    page.goto(f"/workspaces/{workspace.pk}/")
    banner = page.get_by_text("Live connection lost. Reconnecting")
    banner.wait_for(state="visible")
    Workspace.objects.filter(pk=workspace.pk).update(state=State.STOPPED)
    # Without the stream, the page polls occasionally.
    page.get_by_role("button", name="Start").wait_for(timeout=60_000)
    broken["yes"] = False
    banner.wait_for(state="hidden", timeout=90_000)


def test_list_filters_while_typing_and_restores_on_back(
    visit: Visit, alice: User, workspace_in: Make
) -> None:
    for name in ("alpha", "beta", "gamma"):
        workspace_in("stopped", alice, name=name)
    page = visit(alice)
    page.goto("/")
    page.get_by_label("Search by name").fill("bet")
    page.get_by_role("heading", name="alpha").wait_for(state="detached")
    assert page.locator(".ws").count() == 1
    page.wait_for_url(re.compile(r"\?q=bet\b"))
    page.reload()
    assert page.locator(".ws").count() == 1
    assert page.get_by_label("Search by name").input_value() == "bet"


def test_delete_dialog_closes_on_escape(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("running", alice, name="precious")
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    opener = page.locator("#act-delete")
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete precious?")
    dialog.wait_for()
    assert violations(page) == []
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")
    # The close event fires after the dialog is hidden.
    page.wait_for_function("document.activeElement.id === 'act-delete'")
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Delete precious").click()
    page.get_by_text("precious is being deleted").wait_for()
    workspace.refresh_from_db()
    assert workspace.state == State.TERMINATING


def test_theme_is_kept_across_pages_without_a_flash(visit: Visit, alice: User, team: Team) -> None:
    page = visit(alice, color_scheme="light")
    page.goto("/teams/")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.locator(".account-menu > summary").click()
    page.get_by_role("button", name="Dark theme").click()
    assert page.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "true"
    dark = page.evaluate(background)
    assert dark != light
    answer = page.goto("/account/")
    assert answer is not None
    assert 'data-theme="dark"' in answer.text(), "the server renders it, so nothing flashes"
    assert page.evaluate(background) == dark
    page.locator(".account-menu > summary").click()
    page.get_by_role("button", name="System theme").click()
    assert page.evaluate(background) == light


def test_times_are_shown_in_the_zone_of_the_reader(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("stopped", alice)
    page = visit(alice, timezone_id="Asia/Tokyo", locale="en-GB")
    # With a fixed clock of the reader, ten seconds later is no longer "now".
    page.clock.set_fixed_time(timezone.now())
    page.goto(f"/workspaces/{workspace.pk}/")
    time = page.locator(".timeline time").first
    assert time.get_attribute("title")
    shown = page.evaluate(
        "t => new Date(t).toLocaleTimeString('en-GB', {hour: 'numeric', minute: '2-digit'})",
        time.get_attribute("datetime"),
    )
    assert shown in str(time.get_attribute("title"))
    assert time.inner_text().startswith("now")


def test_reduced_motion_is_respected(visit: Visit, alice: User, workspace_in: Make) -> None:
    workspace_in("provisioning", alice)
    moving = "getComputedStyle(document.querySelector('.spin')).animationName"
    page = visit(alice)
    page.goto("/")
    assert page.evaluate(moving) == "turn"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "none"


def test_first_tab_stop_skips_to_the_content(visit: Visit, alice: User, team: Team) -> None:
    page = visit(alice)
    page.goto("/teams/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/join/"


def test_a_token_can_be_copied(visit: Visit, alice: User) -> None:
    page = visit(alice, permissions=["clipboard-read", "clipboard-write"])
    page.goto("/account/tokens/")
    page.get_by_label("Purpose").fill("nightly")
    page.get_by_role("button", name="Create token").click()
    secret = page.locator("#secret").input_value()
    assert secret.startswith("berth_")
    page.get_by_role("button", name="Copy").click()
    page.locator("#say", has_text="Copied").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()") == secret


def test_workspace_pages_work_without_javascript(
    visit: Visit, alice: User, charlie: User, team: Team, local_pool: Pool, make: Make
) -> None:
    page = visit(None, java_script_enabled=False)
    page.goto("/workspaces/new/")
    page.get_by_label("Name", exact=True).fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    assert page.url.endswith("/workspaces/new/")
    page.get_by_label("marimo").check()
    page.get_by_role("button", name="Check again").click()
    assert page.get_by_label("marimo").is_checked()
    page.get_by_label("Large CPU").check()
    page.get_by_role("button", name="Start", exact=True).click()
    made = Workspace.objects.get()
    assert (made.template.slug, made.flavor.slug) == ("marimo", "cpu-large")
    page.get_by_role("link", name="Delete").wait_for()
    assert page.locator("noscript meta[http-equiv=refresh], meta[http-equiv=refresh]").count() == 1
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name=f"Delete {made.name}").click()
    page.get_by_text("is being deleted").wait_for()
    page.goto("/")
    page.get_by_label("Search by name").fill("nothing-like-it")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("No matching workspaces").wait_for()
    page.goto("/teams/vision/")
    page.get_by_label("Name", exact=True).fill("charlie")
    page.get_by_role("button", name="Add").click()
    page.get_by_text("charlie is now member of Vision.").wait_for()
    page.locator(".account-menu > summary").click()
    page.get_by_role("button", name="Dark theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.locator(".account-menu > summary").click()
    page.get_by_role("button", name="Sign out").click()
    assert page.url.endswith("/sign-in/")


def test_revoked_access_removes_the_open_page(
    visit: Visit, alice: User, bob: User, team: Team, workspace_in: Make
) -> None:
    workspace = workspace_in("running", bob, name="of-bob")
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    page.get_by_role("heading", name="of-bob").wait_for()
    team.memberships.filter(user=alice).update(role="member")
    page.get_by_text("Workspace not found, or you do not have access to it.").wait_for(timeout=20_000)
    assert "of-bob" not in page.content()


def test_ended_session_redirects_a_live_page_to_sign_in(
    visit: Visit, alice: User, workspace_in: Make
) -> None:
    workspace = workspace_in("running", alice)
    page = visit(alice)
    page.goto(f"/workspaces/{workspace.pk}/")
    Session.objects.all().delete()
    page.get_by_role("heading", name="Sign in").wait_for(timeout=20_000)
    assert page.url.endswith(f"/sign-in/?next=%2Fworkspaces%2F{workspace.pk}%2F")
