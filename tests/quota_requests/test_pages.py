"""Pages of requests: form, inbox with evidence, decisions with undo, rules and delegates."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.events.models import Notification
from portal.fleet.inventory.device_states import IDLE_AFTER_S
from portal.fleet.inventory.models import AllocatedDevice, Allocation, DeviceHour, DeviceSeries
from portal.people.accounts.models import Delegation
from portal.quota.limits.models import Cohort, Grant, Quota, TeamShare
from portal.quota.requests import selectors as selectors
from portal.quota.requests.models import AutoApproveRule, QuotaRequest, RequestState
from portal.quota.requests.services import requests
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import MembershipFactory, TeamFactory, UserFactory, WorkspaceFactory
from tests.quota_requests.helpers import ask
from tests.workspaces.helpers import run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.eight_gpus
HTMX = {"HX-Request": "true"}
FORM = {
    "team": "vision",
    "kind": "quota",
    "resource": "gpu:h100",
    "amount": "1.5",
    "lasts": "8",
    "note": "The review",
}


def text_of(response) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def held(team, owner, pool, *, days: float, ago: float = 0, devices: int = 1, active: bool = False, **fields):
    """Create a workspace with devices of the pool's node for that many days, ended that many days ago."""
    now = timezone.now()
    workspace = WorkspaceFactory(
        team=team,
        owner=owner,
        pool=pool if active else None,
        state="running" if active else "stopped",
        **fields,
    )
    ended = None if active else now - timedelta(days=ago)
    allocation = Allocation.objects.create(
        workspace=workspace,
        node=pool.nodes.get(),
        generation=1,
        cpu_milli=1000,
        memory_mib=1024,
        granted_at=now - timedelta(days=ago + days),
        released_at=ended,
    )
    taken = AllocatedDevice.objects.filter(active=True).values("device")
    for device in pool.nodes.get().devices.exclude(pk__in=taken)[:devices]:
        AllocatedDevice.objects.create(allocation=allocation, device=device, active=active)
    if active:
        Workspace.objects.filter(pk=workspace.pk).update(
            amounts={"gpu:h100": 1000 * devices, "gpu": 1000 * devices, "workspaces": 1}
        )
    return workspace


# --- request form ---------------------------------------------------------------------------------


def test_request_form_uses_readable_units(bob, team, petra, eight, as_user):
    client = as_user(bob)
    page = client.get("/quotas/ask/?team=vision&resource=gpu:h100&amount=2000&kind=quota")
    assert 'value="2"' in page.content.decode()
    answer = client.post("/quotas/ask/", FORM)
    made = QuotaRequest.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/quotas/requests/{made.pk}/")
    assert (made.amount, made.note) == (1500, "The review")
    assert timedelta(hours=7, minutes=59) < made.until - timezone.now() <= timedelta(hours=8)
    assert "Waiting for an approver" in text_of(client.get(answer["Location"]))


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("amount", "0", "Enter an amount greater than 0."),
        ("amount", "9", "The site has only 8 × H100"),
        ("amount", "many", "Enter a number"),
        ("amount", "", "This field is required"),
        ("note", " ", "This field is required"),
        ("kind", "member_cap", "You have no cap on H100"),
        ("kind", "ledger", "has no limit on GPU-hours"),
    ],
)
def test_refusal_is_shown_at_its_field_and_input_is_kept(bob, team, eight, as_user, field, given, words):
    page = as_user(bob).post("/quotas/ask/", {**FORM, field: given})
    assert page.status_code == 400
    assert words in text_of(page)
    assert not QuotaRequest.objects.exists()


def test_requesting_twice_redirects_to_the_first(bob, team, eight, as_user):
    client = as_user(bob)
    client.post("/quotas/ask/", FORM)
    answer = client.post("/quotas/ask/", FORM)
    made = QuotaRequest.objects.get()
    assert answer["Location"] == f"/quotas/requests/{made.pk}/"
    assert "Your request for 1.5 × H100 more for Vision is still pending" in text_of(
        client.get(answer["Location"])
    )


def test_form_shows_amounts_approved_at_once(bob, team, petra, eight, as_user):
    AutoApproveRule.objects.create(resource="gpu:h100", amount_at_most=2000, hours_at_most=8)
    Quota.objects.create(team=team, resource="gpu:h100", quota=4000)
    hint = as_user(bob).get(
        "/quotas/ask/?team=vision&kind=quota&resource=gpu:h100", headers={**HTMX, "HX-Target": "hint"}
    )
    assert "Approved automatically: up to 2 × H100 for up to 8 h" in text_of(hint)
    assert "0 × H100 in use of a quota of 4" in text_of(hint)
    assert b"<html" not in hint.content


def test_user_without_a_team_sees_the_next_step(petra, as_user):
    assert "You are not in a team yet" in text_of(as_user(petra).get("/quotas/ask/"))


def test_hours_and_checkpoints_are_kept_in_the_request(bob, team, eight, as_user):
    """From the workspace form through the request form to the waiting workspace."""
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    browser = as_user(bob)
    query = {"template": "jupyterlab", "flavor": "gpu-1", "team": "vision", "name": "big", "ask": "1"}
    for hours in ("lots", "0", "9999"):
        assert browser.post("/workspaces/new/", {**query, "hours": hours}).status_code == 400
    asking = browser.post("/workspaces/new/", {**query, "hours": "2,5", "checkpointed": "on"})
    page = browser.get(asking.url).content.decode()
    hidden = dict(re.findall(r'type="hidden" name="(\w+)"\s+value="([^"]*)"', page))
    assert (hidden["hours"], hidden["checkpointed"]) == ("2,5", "on")
    again = re.search(r'href="(/workspaces/new/[^"]+)"', page)[1].replace("&amp;", "&")
    form = browser.get(again).content.decode()
    assert re.search(r'name="hours" value="2,5"', form)
    assert re.search(r'name="checkpointed" checked', form)
    sent = {name: value for name, value in hidden.items() if name != "csrfmiddlewaretoken"}
    browser.post("/quotas/ask/", {**FORM, "amount": "1", **sent})
    made = QuotaRequest.objects.get().workspace
    assert (made.name, made.expected_s, made.checkpointed, made.loses_work) == ("big", 9000, True, False)


def test_fallback_flavors_are_kept_in_the_request(bob, team, eight, as_user):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    browser = as_user(bob)
    wanted = {"template": "jupyterlab", "flavor": "gpu-1", "team": "vision", "ask": "1", "second": "gpu-2"}
    page = browser.get(browser.post("/workspaces/new/", {**wanted, "start_within": "5"}).url).content.decode()
    assert "Other choices, in this order: Gpu-2." in page
    hidden = dict(re.findall(r'type="hidden" name="(\w+)"\s+value="([^"]*)"', page))
    del hidden["csrfmiddlewaretoken"]
    browser.post("/quotas/ask/", {**FORM, "amount": "1", **hidden})
    made = QuotaRequest.objects.get().workspace
    assert [choice["flavor"] for choice in made.flavor_choices] == ["gpu-1", "gpu-2"]
    assert made.start_within_s == 300


def test_hours_and_checkpoints_default_to_flavor_and_template(bob, team, eight, as_user):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    start = {"template": "jupyterlab", "flavor": "gpu-1", "name": "big"}
    as_user(bob).post("/quotas/ask/", {**FORM, "amount": "1", **start})
    made = QuotaRequest.objects.get().workspace
    assert (made.expected_s, made.checkpointed) == (made.flavor.expected_hours * 3600, None)


def test_invalid_hours_are_reported_in_the_form(bob, team, eight, as_user):
    start = {"template": "jupyterlab", "flavor": "gpu-1", "name": "big", "hours": "lots"}
    page = as_user(bob).post("/quotas/ask/", {**FORM, "amount": "1", **start})
    assert "hours, such as 8 or 0.5" in text_of(page)
    assert not QuotaRequest.objects.exists()


def test_refused_workspace_runs_after_request_and_approval(bob, petra, team, eight, as_user, sent):
    """From the refusal to a running workspace, with forms only."""
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    start = {"template": "jupyterlab", "flavor": "gpu-1", "name": "big"}
    page = as_user(bob).get(
        "/quotas/ask/", {"team": "vision", "resource": "gpu:h100", "amount": 1000, **start}
    )
    assert "starts when the request is approved" in text_of(page)
    as_user(bob).post("/quotas/ask/", {**FORM, "amount": "1", **start})
    made = QuotaRequest.objects.get()
    assert (made.workspace.name, made.workspace.state) == ("big", "pending")
    inbox = as_user(petra).get("/quotas/approvals/")
    assert "on Gpu-1) waits for this request" in text_of(inbox)
    sent.clear()
    as_user(petra).post(f"/quotas/requests/{made.pk}/decide/", {"decision": "approve", "amount": "1"})
    for message in sent.take("control.schedule"):
        sent.deliver(message)
    run_until_ready(sent, made.workspace)
    assert Workspace.objects.get(name="big").state == "running"
    page = text_of(as_user(bob).get(f"/quotas/requests/{made.pk}/"))
    assert "petra approved" in page
    assert "Running" in page
    for reader, path in ((bob, f"/quotas/requests/{made.pk}/"), (petra, "/quotas/approvals/")):
        shown = text_of(as_user(reader).get(path))
        assert "waits for this request" not in shown
        assert "on Gpu-1), now running" in shown


def test_decision_updates_the_counters_of_the_page(bob, alice, petra, team, eight, as_user):
    for user in (bob, alice):
        as_user(user).post("/quotas/ask/", FORM)
    client = as_user(petra)
    page = client.get("/quotas/approvals/").content.decode()
    assert "2 requests are waiting for you" in page
    first, second = QuotaRequest.objects.order_by("created_at")
    for made, left, badge in (
        (first, "1 request is waiting for you.", '><span class="badge plain wait">1<'),
        (second, "No requests are waiting for you.", ">\n</span>"),
    ):
        decision = {"decision": "approve", "next": "inbox"}
        part = client.post(f"/quotas/requests/{made.pk}/decide/", decision, headers=HTMX)
        body = part.content.decode()
        assert f'<span hx-swap-oob="innerHTML:#waiting">{left}' in body
        assert f'<span hx-swap-oob="innerHTML:#to-decide"{badge}' in body


def test_request_for_a_workspace_within_quota_is_refused(bob, team, eight, as_user):
    start = {"template": "jupyterlab", "flavor": "gpu-1", "name": "big"}
    page = as_user(bob).post("/quotas/ask/", {**FORM, **start})
    assert page.status_code == 400
    assert "JupyterLab on Gpu-1 needs no approval. Start it on the New workspace page" in text_of(page)
    assert not Workspace.objects.exists()
    assert not QuotaRequest.objects.exists()


def test_refused_request_leaves_no_workspace(bob, team, eight, as_user):
    Quota.objects.create(team=team, resource="gpu:h100", quota=0, borrowing_limit=0)
    start = {"template": "jupyterlab", "flavor": "gpu-1", "name": "big"}
    page = as_user(bob).post("/quotas/ask/", {**FORM, "amount": "9", **start})
    assert page.status_code == 400
    assert not Workspace.objects.exists()


# --- inbox ----------------------------------------------------------------------------------------


def test_inbox_shows_evidence_for_the_decision(bob, alice, petra, team, eight, as_user):
    lab = Cohort.objects.create(slug="lab", name="Lab")
    nlp = TeamFactory(slug="nlp", name="NLP")
    for each, quota in ((team, 4000), (nlp, 2000)):
        TeamShare.objects.create(team=each, cohort=lab)
        Quota.objects.create(team=each, resource="gpu:h100", quota=quota)
    held(team, bob, eight, days=10, ago=25)  # 5 of the 10 days are within the last 30
    held(team, alice, eight, days=1, active=True, devices=2, name="idle")
    held(nlp, UserFactory(), eight, days=1, active=True, devices=5)
    denied = ask(bob, team)
    requests.deny(actor=petra, request_id=denied.pk, note="Use A100")
    ask(bob, team, amount=3000, note="The review")

    page = text_of(as_user(petra).get("/quotas/approvals/"))
    for words in (
        "bob requests 3 × H100 more for Vision",
        "2 × H100 in use of a quota of 4",
        "168 GPU-hours: 0.233 × H100 on average, 2 workspaces",
        "Idle share not measured",
        "Available in Lab 0 of the quota unused",
        "8 in service, 1 free; 6 in quotas and grants",
        "1 free now; can preempt work of borrowers: NLP 2",
        "Denied: bob requested 1 × H100: “Use A100”",
    ):
        assert words in page


def test_idle_amount_is_measured_and_never_zero_without_data(bob, petra, team, eight):
    held(team, bob, eight, days=1, active=True, devices=3)
    first, second, third = AllocatedDevice.objects.filter(active=True)
    made = ask(bob, team)
    idle = selectors.evidence(made).idle
    assert (idle.allocated, idle.measured, idle.percent) == (3, 0, None)
    now = int(time.time())
    DeviceSeries.objects.create(device=first.device, newest_s=now, idle_since_s=now - IDLE_AFTER_S)
    DeviceSeries.objects.create(device=second.device, newest_s=now, idle_since_s=now - IDLE_AFTER_S + 60)
    DeviceSeries.objects.create(device=third.device, newest_s=now - 3600, idle_since_s=now - 7200)
    idle = selectors.evidence(made).idle
    assert (idle.allocated, idle.measured, idle.idle, idle.percent) == (3, 2, 1, 50)


def test_gpu_use_is_shown_or_marked_as_not_measured(bob, petra, team, eight, as_user):
    held(team, bob, eight, days=1, active=True, devices=2)
    made = ask(bob, team)
    page = text_of(as_user(petra).get("/quotas/approvals/"))
    assert "GPU use, 30 days not measured" in page
    series = DeviceSeries.objects.create(device=AllocatedDevice.objects.first().device)
    hour_s = int(timezone.now().timestamp()) // 3600 * 3600 - 7200
    figures = {"measured_s": 3600, "gpu_s": 3600, "gpu_pct_s": 45 * 3600}
    DeviceHour.objects.create(series=series, start_s=hour_s, **figures)
    page = text_of(as_user(petra).get("/quotas/approvals/"))
    assert "GPU use, 30 days 45 % of 1 measured GPU-hours; 47 not measured" in page
    assert selectors.evidence(made).use.percent == 45
    about_disk = ask(bob, team, resource="cpu_milli")
    assert selectors.evidence(about_disk).use is None


@pytest.mark.thorough("fifty requests")
def test_fifty_requests_take_as_many_queries_as_one(
    petra, team, eight, as_user, django_assert_max_num_queries
):
    for number in range(50):
        some = TeamFactory()
        user = MembershipFactory(team=some, user=UserFactory()).user
        TeamShare.objects.create(team=some)
        ask(user, some, note=f"Number {number}")
    client = as_user(petra)
    with django_assert_max_num_queries(40):
        page = client.get("/quotas/approvals/")
    assert page.content.count(b"quota-request") == 50


def test_approval_for_less_replaces_the_row_with_the_decision_and_undo(bob, petra, team, eight, as_user):
    made = ask(bob, team, amount=2000)
    client = as_user(petra)
    row = client.post(
        f"/quotas/requests/{made.pk}/decide/",
        {"decision": "approve", "amount": "0.5", "lasts": "24", "note": "For now"},
        headers=HTMX,
    )
    grant = Grant.objects.get()
    assert (grant.amount, row.status_code) == (500, 200)
    assert timedelta(hours=23) < grant.ends_at - timezone.now() <= timedelta(hours=24)
    assert b"<html" not in row.content
    assert "petra approved 0.5 × H100" in text_of(row)
    assert f"/quotas/grants/{grant.pk}/revoke/" in row.content.decode()
    back = client.post(f"/quotas/grants/{grant.pk}/revoke/", headers=HTMX)
    assert "Ended" in text_of(back)
    grant.refresh_from_db()
    assert grant.ended_at


def test_own_page_of_a_request_stays_itself_through_a_refused_and_a_made_decision(
    bob, alice, petra, team, eight, as_user
):
    Quota.objects.create(team=team, resource="gpu:h100", quota=4000)
    first, second, third = ask(bob, team), ask(alice, team), ask(alice, team, resource="cpu_milli")
    client = as_user(petra)
    pages = [f"/quotas/requests/{row.pk}/" for row in (first, second, third)]
    refused = client.post(f"{pages[0]}decide/", {"decision": "deny", "note": ""}, headers=HTMX)
    form = refused.content.decode()
    assert 'name="next"' not in form, "the next decision would lead to the list"
    assert re.search(r'name="note"[^>]* autofocus aria-invalid="true"', form)
    assert re.search(r'class="btn primary" name="decision" value="approve"', form)
    denied = client.post(f"{pages[0]}decide/", {"decision": "deny", "note": "Use A100"}, headers=HTMX)
    assert f'href="{pages[1]}">Next request' in denied.content.decode()
    history = denied.content.decode().partition('hx-swap-oob="innerHTML:#history"')[2]
    assert "petra" in history and "Use A100" in history
    approved = client.post(f"{pages[1]}decide/", {"decision": "approve", "amount": "1"}, headers=HTMX)
    assert "quota 5 (1 temporary)" in text_of(approved), "it does not show what changed"
    assert "quota 5 (1 temporary)" in text_of(client.get(pages[1]))
    assert "temporary" not in text_of(as_user(bob).get(pages[1])).partition("History")[0]
    last = client.post(f"{pages[2]}decide/", {"decision": "approve"}, headers=HTMX).content.decode()
    assert "Next request" not in last and 'href="/inbox/">Back to inbox' in last


def test_form_starts_with_a_resource_that_the_team_has_a_quota_of(bob, team, eight, as_user):
    assert '<option value="gpu" selected' in as_user(bob).get("/quotas/ask/?team=vision").content.decode()
    Quota.objects.create(team=team, resource="cpu_milli", quota=4000)
    page = as_user(bob).get("/quotas/ask/?team=vision")
    assert '<option value="cpu_milli" selected' in page.content.decode()
    assert "of a quota of 4" in text_of(page)
    assert f'href="/teams/{team.slug}/">{team.name}' in page.content.decode()


def test_denial_without_a_note_is_refused_and_keeps_the_form(bob, petra, team, eight, as_user):
    made = ask(bob, team)
    url = f"/quotas/requests/{made.pk}/decide/"
    client = as_user(petra)
    row = client.post(url, {"decision": "deny", "amount": "1", "note": ""}, headers=HTMX)
    assert "A denial needs a note" in text_of(row)
    assert "<form" in row.content.decode()
    plain = client.post(url, {"decision": "deny", "note": "", "next": "inbox"})
    assert plain["Location"] == f"/quotas/approvals/#r-{made.pk}"
    assert "A denial needs a note" in text_of(client.get("/quotas/approvals/"))
    client.post(url, {"decision": "deny", "note": "Use A100", "next": "inbox"})
    made.refresh_from_db()
    assert made.state == RequestState.DENIED
    page = client.get("/quotas/approvals/")
    assert "“Use A100”" in text_of(page)
    assert "hx-swap-oob" not in page.content.decode(), "counters of a fragment are in the page"
    own = as_user(bob).get(f"/quotas/requests/{made.pk}/").content.decode()
    assert "resource=gpu%3Ah100&amp;amount=1000" in own


def test_second_approver_sees_the_first_decision(bob, petra, team, eight, as_user):
    made = ask(bob, team)
    client = as_user(petra)
    requests.approve(actor=UserFactory(username="paul", is_approver=True), request_id=made.pk)
    row = client.post(f"/quotas/requests/{made.pk}/decide/", {"decision": "approve"}, headers=HTMX)
    assert "paul approved the request a moment ago" in text_of(row)
    assert "Revoke grant" in text_of(row)


def test_new_requests_are_announced_without_changing_the_page(bob, petra, team, eight, as_user):
    made = ask(bob, team)
    client = as_user(petra)
    news = {**HTMX, "HX-Target": "news"}
    assert text_of(client.get(f"/quotas/approvals/?known={made.pk}", headers=news)) == ""
    ask(bob, team, resource="gpu")
    assert "1 new request" in text_of(client.get(f"/quotas/approvals/?known={made.pk}", headers=news))


def test_user_without_decisions_sees_own_requests(bob, alice, team, eight, as_user):
    ask(bob, team)
    page = text_of(as_user(bob).get("/quotas/approvals/"))
    assert "Your requests" in page
    assert "1 × H100" in page
    assert "Approve" not in page


def test_outsider_sees_no_request_and_colleague_cannot_decide(bob, charlie, team, eight, as_user):
    made = ask(bob, team)
    dan = MembershipFactory(team=team, user=UserFactory(username="dan")).user
    for path in ("", "decide/", "cancel/"):
        assert as_user(charlie).get(f"/quotas/requests/{made.pk}/{path}").status_code in {302, 404}
        assert as_user(charlie).post(f"/quotas/requests/{made.pk}/{path}").status_code in {404, 405}
    assert as_user(dan).get(f"/quotas/requests/{made.pk}/").status_code == 200
    as_user(dan).post(f"/quotas/requests/{made.pk}/decide/", {"decision": "approve"})
    made.refresh_from_db()
    assert made.state == RequestState.OPEN


def test_request_is_cancelled_on_the_page(bob, team, eight, as_user):
    made = ask(bob, team)
    as_user(bob).post(f"/quotas/requests/{made.pk}/cancel/")
    made.refresh_from_db()
    assert made.state == RequestState.CANCELLED


# --- rules and delegates --------------------------------------------------------------------------


def test_rules_are_created_disabled_and_deleted_on_the_page(petra, team, eight, as_user):
    client = as_user(petra)
    assert "No rules" in text_of(client.get("/quotas/rules/"))
    wrong = client.post("/quotas/rules/", {"resource": "gpu:h100", "amount": "0", "hours": "8", "team": ""})
    assert wrong.status_code == 400
    client.post("/quotas/rules/", {"resource": "gpu:h100", "amount": "0.5", "hours": "8", "team": "vision"})
    rule = AutoApproveRule.objects.get()
    assert (rule.amount_at_most, rule.hours_at_most, rule.team) == (500, 8, team)
    assert "Up to 0.5 × H100 for up to 8 hours, for Vision" in text_of(client.get("/quotas/rules/"))
    client.post(f"/quotas/rules/{rule.pk}/", {"enabled": "0"})
    rule.refresh_from_db()
    assert rule.enabled is False
    client.post(f"/quotas/rules/{rule.pk}/", {"remove": "1"})
    assert not AutoApproveRule.objects.exists()


def test_delegate_is_notified_and_sees_the_inbox(petra, olga, bob, team, eight, as_user):
    ask(bob, team)
    client = as_user(petra)
    wrong = client.post("/quotas/delegations/", {"delegate": "nobody-has-this", "lasts": "24"})
    assert "User not found" in text_of(wrong)
    client.post("/quotas/delegations/", {"delegate": "olga", "lasts": "24"})
    assert "You are a delegate of petra" in text_of(as_user(olga).get("/quotas/approvals/"))
    assert Notification.objects.filter(user=olga, kind="quota.delegated").exists()
    made = Delegation.objects.get()
    as_user(olga).post(f"/quotas/delegations/{made.pk}/revoke/")
    made.refresh_from_db()
    assert made.ends_at <= timezone.now()
    assert "as delegate of petra" not in text_of(as_user(olga).get("/quotas/approvals/"))


def test_members_cannot_see_rules(bob, alice, team, as_user):
    for user in (bob, alice):
        assert as_user(user).get("/quotas/rules/").status_code == 403
