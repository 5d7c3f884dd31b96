"""Quota in a real browser: bars, member caps, and the limits page of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from portal.common.actors import SYSTEM
from portal.people.accounts.models import Team, User
from portal.quota.limits.models import MemberCap, Quota, TeamShare
from portal.quota.limits.services import cohorts, limits
from portal.workspaces.lifecycle import State
from tests.factories import MembershipFactory, TeamFactory, WorkspaceFactory, local_pool_with, node_info
from tests.ui.conftest import LONG_TEAM, shot
from tests.ui.test_browser import COLOUR_RULES, DESKTOP, NARROW, PHONE, overflows, too_small, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
H100 = "gpu:h100"


@pytest.fixture
def site(catalog: None, team: Team, alice: User, bob: User) -> dict[str, Any]:
    """vision (borrowing, with waiting requests), a lender, a team over its quota, nested cohorts, caps."""
    pool = local_pool_with(node_info(gpus=8))
    lab = cohorts.create_cohort(actor=SYSTEM, slug="lab", name="Laboratory")
    inner = cohorts.create_cohort(actor=SYSTEM, slug="inner", name="Inner circle", parent=lab)
    lender = TeamFactory(slug="nlp", name="Language")
    long = TeamFactory(slug="l" * 40, name=LONG_TEAM[:80])
    MembershipFactory(team=long, user=alice)
    for each, cohort in ((team, inner), (lender, inner), (long, lab)):
        cohorts.set_share(actor=SYSTEM, team=each, cohort=cohort)
    limits.set_quota(actor=SYSTEM, team=team, resource=H100, quota=4000, borrowing_limit=4000)
    limits.set_quota(actor=SYSTEM, team=lender, resource=H100, quota=4000, lending_limit=3000)
    limits.set_quota(actor=SYSTEM, team=long, resource=H100, quota=1000, borrowing_limit=0)
    limits.set_quota(actor=SYSTEM, team=team, resource="memory_mib", quota=262_144)
    limits.set_site_limit(actor=SYSTEM, resource="cpu_milli", amount=64_000)
    limits.set_member_cap(actor=SYSTEM, team=team, resource=H100, amount=2000)
    limits.set_member_cap(actor=SYSTEM, team=team, user=bob, resource=H100, amount=4000)
    running = {"team": team, "state": State.RUNNING, "pool": pool}
    WorkspaceFactory(owner=bob, **running, amounts={H100: 4500, "memory_mib": 65_536, "cpu_milli": 8000})
    WorkspaceFactory(owner=alice, **running, amounts={H100: 1000, "memory_mib": 65_536})
    WorkspaceFactory(owner=alice, team=team, state=State.PENDING, amounts={H100: 1000})
    WorkspaceFactory(owner=alice, **{**running, "team": long}, amounts={H100: 3000})
    return {"lender": lender, "long": long}


PAGES = {
    "team": ("alice", "/teams/vision/"),
    "over": ("alice", f"/teams/{'l' * 40}/"),
    "limits": ("olga", "/quotas/limits/"),
    "edit": ("olga", "/quotas/limits/?edit=team:vision"),
}


@pytest.mark.thorough("more pages; `make test` has those of test_browser")
def test_pages_of_quota_are_accessible_and_fit(visit: Visit, alice: User, olga: User, site: object) -> None:
    people = {"alice": alice, "olga": olga}
    wrong: dict[str, Any] = {}
    for size, viewport in (("desktop", DESKTOP), ("phone", PHONE), ("narrow", NARROW)):
        pages = {username: visit(user, viewport=viewport) for username, user in people.items()}
        for name, (username, path) in PAGES.items():
            page = pages[username]
            page.goto(path)
            if name == "team":
                page.get_by_text("Show as a table").click()
            wrong[f"{name} {size} overflows"] = overflows(page)
            if size != "narrow":
                wrong[f"{name} {size}"] = [*violations(page), *too_small(page)]
                shot(page, f"{name}-{size}")
    assert not {key: value for key, value in wrong.items() if value}


@pytest.mark.thorough("`make test` has the light theme")
def test_pages_of_quota_have_contrast_in_the_dark_theme(
    visit: Visit, alice: User, olga: User, site: object
) -> None:
    people = {"alice": visit(alice, color_scheme="dark"), "olga": visit(olga, color_scheme="dark")}
    for name, (username, path) in PAGES.items():
        people[username].goto(path)
        assert violations(people[username], COLOUR_RULES) == [], name
        shot(people[username], f"{name}-dark")


def test_a_quota_is_edited_in_place_by_keyboard(visit: Visit, olga: User, site: object) -> None:
    from playwright.sync_api import expect

    page = visit(olga)
    page.goto("/quotas/limits/")
    page.get_by_role("link", name="Edit Vision").press("Enter")
    expect(page.locator("#quota")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    page.get_by_text("Quota of Vision set to 2 × H100.").wait_for()
    assert Quota.objects.get(team__slug="vision", resource=H100).quota == 2000
    expect(page.locator("#edit-team-vision")).to_be_focused()
    page.get_by_role("link", name="Edit Vision").click()
    page.get_by_label("Quota", exact=True).fill("two")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Enter a number of at least 0").wait_for()
    assert page.get_by_label("Quota", exact=True).input_value() == "two"


@pytest.mark.thorough("test_browser has pages without JavaScript")
def test_limits_work_without_javascript(visit: Visit, olga: User, alice: User, site: object) -> None:
    page = visit(olga, java_script_enabled=False)
    page.goto("/quotas/limits/")
    page.get_by_label("Resource", exact=True).first.select_option("cpu_milli")
    page.get_by_role("button", name="Show").first.click()
    page.get_by_role("link", name="Set Language").click()
    page.get_by_label("Quota", exact=True).fill("16")
    page.locator("#cohort").select_option("Laboratory")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Quota of Language set to 16 CPU cores.").wait_for()
    assert Quota.objects.get(resource="cpu_milli").quota == 16_000
    assert TeamShare.objects.get(team__slug="nlp").cohort.slug == "lab"
    owner = visit(alice, java_script_enabled=False)
    owner.goto("/teams/vision/")
    owner.get_by_label("Cap on H100 for bob (GPUs)").fill("1.5")
    owner.get_by_role("button", name="Set for bob").click()
    owner.get_by_text("Cap for bob set to 1.5 × H100.").wait_for()
    assert MemberCap.objects.get(user__username="bob").amount == 1500


def test_quotas_are_edited_in_the_matrix_by_keyboard(
    visit: Visit, olga: User, team: Team, site: dict[str, Any]
) -> None:
    page = visit(olga)
    page.goto("/quotas/")
    own = page.get_by_label("Vision: H100")
    own.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Language: H100"
    page.keyboard.type("2")
    page.keyboard.press("Escape")
    assert page.get_by_label("Language: H100").input_value() == "4"
    page.keyboard.press("ArrowDown")
    page.keyboard.type("3")
    assert "Changed quotas: 1" in page.locator(".matrix-bar").inner_text()
    shot(page, "quota-matrix")
    page.keyboard.press("Enter")
    page.wait_for_selector("#save")
    assert Quota.objects.get(team=team, resource=H100).quota == 4000
    assert "Over quota" in page.get_by_role("region", name="Changed quotas").inner_text()
    shot(page, "quota-preview")
    assert not violations(page)
    page.locator("#save").press("Enter")
    page.wait_for_selector("text=1 quota saved.")
    assert Quota.objects.get(team=team, resource=H100).quota == 3000
    for viewport in (DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        assert not violations(page) and not overflows(page)
        assert not too_small(page)
        shot(page, f"quota-matrix-{viewport['width']}")
