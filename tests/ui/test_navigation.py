"""The menu by role, and search results the reader can open."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.web.navigation import find, menu
from portal.workspaces.models import Workspace
from tests.factories import FlavorFactory, TeamFactory, UserFactory, WorkspaceFactory
from tests.ui.test_browser import DESKTOP, PHONE, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

Make = Callable[..., Workspace]


def labels(user: User) -> list[str]:
    return [str(page.label) for group in menu.groups_for(user) for page in group.pages]


def found(user: User, text: str) -> dict[str, list[str]]:
    return {group.title: [str(result.title) for result in group.results] for group in find.find(user, text)}


@pytest.mark.django_db
def test_each_role_sees_its_pages(alice: User, bob: User, olga: User, team: Team) -> None:
    everyone = ["Workspaces", "New workspace", "Environments", "Files", "Teams", "Inbox", "Queue"]
    assert labels(bob) == everyone, "no flavor has GPUs"
    owner = ["Workspaces", "All workspaces", *everyone[1:-1], "Catalog", "Queue"]
    assert labels(alice) == owner, "owners see their team's workspaces and manage its templates"
    FlavorFactory(slug="one-gpu", accelerator_count=1)
    assert labels(bob) == [*everyone, "GPUs", "Calendar"]
    assert labels(olga)[-6:] == ["Pools", "Catalog", "Quotas", "Reports", "Announcements", "Webhooks"]
    root = UserFactory(is_superuser=True)
    assert labels(root)[-2:] == ["Users", "Audit log"]
    assert "New workspace" not in labels(UserFactory(is_auditor=True))


@pytest.mark.django_db
def test_menu_takes_two_queries(bob: User, team: Team, django_assert_num_queries: Any) -> None:
    bob = User.objects.get(pk=bob.pk)
    with django_assert_num_queries(2):
        menu.groups_for(bob)


@pytest.mark.django_db
def test_search_finds_only_accessible_pages(alice: User, bob: User, team: Team, pool: Pool) -> None:
    other = TeamFactory(slug="secret-lab", name="Secret lab")
    stranger = UserFactory(username="secret-agent")
    WorkspaceFactory(name="secret-run", owner=stranger, team=other)
    WorkspaceFactory(name="secret-notes", owner=bob, team=team)
    assert found(alice, "secret") == {"Workspaces": ["secret-notes"], **public(alice, "secret")}
    root = UserFactory(is_superuser=True)
    assert found(root, "secret") == {
        "Workspaces": ["secret-notes", "secret-run"],
        "Teams": ["Secret lab"],
        "People": ["secret-agent"],
        **public(root, "secret"),
    }


def public(user: User, text: str) -> dict[str, list[str]]:
    return {title: names for title, names in found(user, text).items() if title in ("Documentation", "Pages")}


@pytest.mark.django_db
def test_verb_before_a_name_opens_its_page(alice: User, team: Team) -> None:
    workspace = WorkspaceFactory(name="night-run", owner=alice, team=team)
    (group,) = (group for group in find.find(alice, "stop night") if group.title == "Workspaces")
    (result,) = group.results
    assert (result.title, result.url) == ("Stop night-run", f"/workspaces/{workspace.pk}/stop/")
    assert found(alice, "NIGHT")["Workspaces"] == ["night-run"]
    assert found(alice, "open")["Documentation"], "a verb alone is a word"


@pytest.mark.django_db
def test_own_workspaces_are_first_of_up_to_five_results(alice: User, bob: User, team: Team) -> None:
    for number in range(4):
        WorkspaceFactory(name=f"a-run-{number}", owner=bob, team=team)
        WorkspaceFactory(name=f"b-run-{number}", owner=alice, team=team)
    names = found(alice, "run-")["Workspaces"]
    assert names == ["b-run-0", "b-run-1", "b-run-2", "b-run-3", "a-run-0"]


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["", "%", "a" * 5000, "<script>alert(1)</script>", "🦄"])
def test_unusual_queries_are_answered(alice: User, team: Team, as_user: Any, text: str) -> None:
    htmx = {"HX-Request": "true", "HX-Target": "results"}
    answer = as_user(alice).get("/search/", {"q": text}, headers=htmx)
    assert answer.status_code == 200
    assert "<script>" not in answer.content.decode()


@pytest.mark.django_db
def test_search_finds_machines_and_pages(olga: User, pool: Pool, client: Client) -> None:
    node = pool.nodes.all()[0]
    assert node.name in found(olga, node.name)["Machines and pools"]
    assert found(olga, "cal")["Pages"] == ["Calendar"]
    assert found(olga, "idle")["Pages"] == ["Reports"]


@pytest.mark.apart
@pytest.mark.browser
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators")
def test_ctrl_k_opens_the_search(visit: Callable[..., Page], alice: User, workspace_in: Make) -> None:
    workspace = workspace_in("running", alice, name="night-run")
    page = visit(alice, viewport=DESKTOP)
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("night")
    page.get_by_role("dialog").get_by_role("link", name=re.compile("night-run")).wait_for()
    assert violations(page) == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/workspaces/{workspace.pk}/")
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    assert not page.locator("#find").is_visible()


@pytest.mark.apart
@pytest.mark.browser
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators")
def test_phone_layout_has_a_bar_and_a_sheet(visit: Callable[..., Page], alice: User, team: Team) -> None:
    page = visit(alice, viewport=PHONE)
    page.goto("/")
    main = page.get_by_role("navigation", name="Main")
    assert not main.is_visible()
    page.get_by_role("button", name="Menu").click()
    main.get_by_role("link", name="Environments").wait_for()
    assert violations(page) == []
    page.keyboard.press("Escape")
    main.wait_for(state="hidden")
    page.get_by_role("button", name="Menu").click()
    main.get_by_role("link", name="Environments").click()
    page.wait_for_url("**/environments/")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
