"""Quota requests in a real browser: accessible, on a phone, by keyboard, without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from portal.common.events.services import notify
from portal.people.accounts.models import Team, User
from portal.quota.limits.models import Cohort, Grant, Quota, TeamShare
from portal.quota.requests.models import QuotaRequest
from portal.quota.requests.services import requests, rules
from tests.factories import FlavorFactory, UserFactory, local_pool_with, node_info
from tests.quota_requests.helpers import ask, in_hours
from tests.ui.test_browser import COLOUR_RULES, DESKTOP, NARROW, PHONE, overflows, too_small, violations

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]
Visit = Callable[..., "Page"]
LONG_WHY = "Fine-tuning for the review on Friday. " + "averylongwordwithoutanyspaces" * 6


@pytest.fixture
def petra(db: None) -> User:
    return UserFactory(username="petra", is_approver=True)


@pytest.fixture
def gpus(catalog: None) -> None:
    FlavorFactory(slug="gpu-1", accelerator_count=1, accelerator_model="NVIDIA H100 80GB HBM3")
    local_pool_with(node_info(gpus=8))


@pytest.fixture
def asked(bob: User, alice: User, petra: User, team: Team, gpus: None) -> dict[str, Any]:
    """A filled inbox: a decision of each kind, a rule, a delegate, and notices."""
    lab = Cohort.objects.create(slug="lab", name="Lab")
    TeamShare.objects.create(team=team, cohort=lab)
    Quota.objects.create(team=team, resource="gpu:h100", quota=4000)
    denied = ask(bob, team, amount=8000)
    requests.deny(actor=petra, request_id=denied.pk, note="More than half of all there is: ask for two.")
    less = ask(bob, team, amount=4000)
    requests.approve(actor=petra, request_id=less.pk, amount=1000, until=in_hours(50), note="Until Monday")
    first = ask(bob, team, amount=2000, note=LONG_WHY)
    second = ask(alice, team, resource="cpu_milli", amount=4000, until=None)
    rules.create_rule(actor=petra, team=None, resource="gpu:h100", amount_at_most=1000, hours_at_most=8)
    rules.delegate(actor=petra, delegate="alice", ends_at=in_hours(50))
    notify([petra], "test", "n" * 180, LONG_WHY, "/")
    return {"first": first, "second": second, "denied": denied, "less": less}


def pages(asked: dict[str, Any]) -> dict[str, str]:
    return {
        "approvals": "/quotas/approvals/",
        "open": f"/quotas/requests/{asked['first'].pk}/",
        "denied": f"/quotas/requests/{asked['denied'].pk}/",
        "less": f"/quotas/requests/{asked['less'].pk}/",
        "rules": "/quotas/rules/",
        "notices": "/notifications/",
        "ask": "/quotas/ask/?resource=gpu:h100&amount=2000&template=jupyterlab&flavor=gpu-1&name=x",
    }


@pytest.mark.thorough("more pages; `make test` has those of test_browser")
@pytest.mark.parametrize("username", ["petra", "bob"])
def test_every_page_is_accessible_and_fits(
    visit: Visit, petra: User, bob: User, asked: dict[str, Any], username: str
) -> None:
    page = visit({"petra": petra, "bob": bob}[username])
    wrong: list[str] = []
    for name, path in pages(asked).items():
        if username == "bob" and name == "rules":
            continue
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        page.goto(path)
        wrong += [f"{name}: {line}" for line in violations(page) + too_small(page)]
        for size in (PHONE, NARROW):
            page.set_viewport_size(size)
            if overflows(page):
                wrong.append(f"{name}: wider than {size['width']} px")
        page.emulate_media(color_scheme="dark")
        page.goto(path)
        wrong += [f"{name} in the dark: {line}" for line in violations(page, COLOUR_RULES)]
    assert not wrong, "\n".join(wrong)


def test_approver_approves_less_by_keyboard_and_revokes_it(
    visit: Visit, petra: User, asked: dict[str, Any]
) -> None:
    page = visit(petra)
    page.goto("/quotas/approvals/")
    made: QuotaRequest = asked["first"]
    row = page.locator(f"#r-{made.pk}")
    row.get_by_label("Grant (GPUs)").fill("0.5")
    row.get_by_label("Until").select_option("24")
    row.get_by_label("Note").fill("For now")
    # Enter in a field activates the first button: Approve.
    page.keyboard.press("Enter")
    row.get_by_text("petra approved 0.5 × H100").wait_for()
    assert Grant.objects.get(request=made).amount == 500
    # htmx restores the focus after the swap, later than the text.
    page.wait_for_function(f"document.activeElement.id === 'r-{made.pk}'")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    row.get_by_text("Ended", exact=True).wait_for()
    assert Grant.objects.get(request=made).ended_at
    # The other request is unchanged, and its typed text was not sent.
    page.locator(f"#r-{asked['second'].pk}").get_by_role("button", name="Deny").click()
    page.get_by_role("alert").get_by_text("A denial needs a note").wait_for()


def test_decision_on_a_phone_is_in_reach_and_asks_for_a_missing_reason(
    visit: Visit, petra: User, asked: dict[str, Any]
) -> None:
    page = visit(petra)
    page.set_viewport_size(PHONE)
    page.goto(f"/quotas/requests/{asked['first'].pk}/")
    deny = page.get_by_role("button", name="Deny")
    box = deny.bounding_box()
    assert box and box["y"] + box["height"] <= PHONE["height"], "one has to scroll to decide"
    deny.click()
    page.get_by_role("alert").get_by_text("A denial needs a note").wait_for()
    page.wait_for_function("document.activeElement.name === 'note'")
    page.keyboard.type("Ask for less")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Deny").click()
    page.locator("#history").get_by_text("Ask for less").wait_for()
    page.get_by_role("link", name="Next request").click()
    page.wait_for_url(re.compile(str(asked["second"].pk)))
    assert not overflows(page) and not violations(page)


def test_refused_workspace_is_requested_and_approved(
    visit: Visit, bob: User, petra: User, team: Team, gpus: None
) -> None:
    """From the refusal to a startable workspace, in two browsers."""
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    member = visit(bob)
    member.goto(
        "/quotas/ask/?team=vision&resource=gpu:h100&amount=1000&template=jupyterlab&flavor=gpu-1&name=big"
    )
    member.get_by_text("Decided by an approver").wait_for()
    member.get_by_label("Purpose").fill("The review")
    member.get_by_role("button", name="Send request, start when approved").click()
    member.wait_for_url(re.compile("/quotas/requests/"))
    member.get_by_text("The workspace starts when the request is approved").wait_for()
    approver = visit(petra)
    approver.goto("/quotas/approvals/")
    approver.get_by_role("button", name="Approve").click()
    approver.get_by_text("petra approved the request").first.wait_for()
    # Without a reload: the page is notified.
    member.get_by_text("Approved. The workspace starts when capacity is free").or_(
        member.get_by_text("Starting")
    ).first.wait_for()


def test_request_form_updates_its_verdict_with_the_choice(
    visit: Visit, bob: User, asked: dict[str, Any]
) -> None:
    page = visit(bob)
    page.goto("/quotas/ask/?team=vision&resource=gpu:h100")
    page.get_by_text("Approved automatically: up to 1 × H100 for up to 8 h").wait_for()
    page.get_by_label("Resource", exact=True).select_option("memory_mib")
    page.get_by_text("Decided by an approver").wait_for()


@pytest.mark.thorough("test_browser has pages without JavaScript")
def test_requests_work_without_javascript(
    visit: Visit, bob: User, petra: User, asked: dict[str, Any]
) -> None:
    page = visit(petra, java_script_enabled=False)
    page.goto("/quotas/approvals/")
    row = page.locator(f"#r-{asked['first'].pk}")
    row.get_by_role("button", name="Deny").click()
    page.get_by_text("A denial needs a note").wait_for()
    row.get_by_label("Note").fill("Use two A100")
    row.get_by_role("button", name="Deny").click()
    page.get_by_text("“Use two A100”").first.wait_for()
    member = visit(bob, java_script_enabled=False)
    member.goto("/notifications/")
    member.get_by_role("button", name=re.compile("Open.*denied 2 × H100")).click()
    member.get_by_role("link", name="Request again").click()
    assert member.get_by_label("Additional amount").input_value() == "2"
