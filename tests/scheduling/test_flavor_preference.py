"""A request with several flavors starts on the first free one and waits for any of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput, NeedsApproval
from portal.common.events.models import Event
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.people.accounts.models import Team
from portal.quota.limits.models import Cohort, Quota, TeamShare
from portal.scheduling import cycle
from portal.scheduling.admission import assess_choices
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.verdicts import Outcome, Verdict
from portal.workspaces import results, services
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from portal.workspaces.problems import stored_message
from tests.factories import FlavorFactory, TeamFactory, local_pool_with
from tests.scheduling.test_model_choice import A100, T4, machine
from tests.snapshots import rows_changed

pytestmark = pytest.mark.django_db
HOUR_S = 3600


@pytest.fixture
def two_models(catalog):
    """A node with an A100 and one with two T4, and a flavor for one of each."""
    pool = local_pool_with(machine("a", A100), machine("b", T4, T4))
    pool.config = {**pool.config, "homes_shared": True}
    pool.hand_out_max_age_hours = 0
    pool.save()
    FlavorFactory(slug="big", name="Big", accelerator_count=1, accelerator_model=A100, preemptible=False)
    FlavorFactory(slug="small", name="Small", accelerator_count=1, accelerator_model=T4)
    rows_changed()
    return pool


def flavors(*slugs: str) -> list[Flavor]:
    return [Flavor.objects.get(slug=slug) for slug in slugs]


def asked(make, team: Team, actor, *slugs: str, within_s: int = 0, **more: Any) -> Workspace:
    """Preview, then create: both agree."""
    said = preview(team, actor, *slugs, within_s=within_s, **more)
    workspace = make(
        actor,
        slugs[0],
        fallbacks=flavors(*slugs[1:]),
        start_within_s=within_s,
        team=team,
        **more,
    )
    if said.outcome is Outcome.FITS_NOW:
        assert (workspace.state, workspace.flavor) == (
            State.PROVISIONING,
            said.flavor or workspace.flavor,
        )
        return workspace
    entry = workspace.queue_entry
    assert workspace.state == State.PENDING
    assert (said.position, said.eta_at, said.next_flavor_text) == (
        entry.position,
        entry.eta_at,
        stored_message(entry.next_flavor),
    )
    return workspace


def preview(team, actor, *slugs: str, within_s: int = 0, **more: Any) -> Verdict:
    template = Template.objects.get(slug="jupyterlab")
    return assess_choices(
        template=template,
        flavors=flavors(*slugs),
        start_within_s=within_s,
        team=team,
        actor=actor,
        **more,
    )


def release(flavor: str) -> None:
    """Release the allocations of this flavor, as if the workspaces had ended."""
    Allocation.objects.filter(flavor=flavor).update(released_at=timezone.now())
    AllocatedDevice.objects.filter(allocation__flavor=flavor).update(active=False)
    rows_changed()


def next_of(workspace: Workspace) -> str:
    workspace.queue_entry.refresh_from_db()
    code: str = workspace.queue_entry.next_flavor["code"]
    return code


def test_first_free_flavor_is_used_with_its_settings(two_models, make, alice, team):
    first, second = (asked(make, team, alice, "big", "small") for _ in range(2))
    assert (first.flavor.slug, second.flavor.slug) == ("big", "small")
    assert (first.preemptible, second.preemptible) == (False, True)
    assert second.resources["accelerators"]["model"] == T4
    assert second.amounts["gpu:t4"] == 1000
    assert second.allocations.get().flavor == "small"
    assert Event.objects.filter(workspace=second, message="placed the workspace on b, on Small").exists()


def test_request_waits_for_all_flavors_and_starts_on_the_first_free(two_models, make, alice, bob, team):
    for slug in ("big", "small", "small"):
        asked(make, team, bob, slug, expected_s=4 * HOUR_S)
    waiting = asked(make, team, alice, "big", "small")
    assert waiting.flavor.slug == "big"
    assert [choice["flavor"] for choice in waiting.flavor_choices] == ["big", "small"]
    release("small")
    cycle.run()
    waiting.refresh_from_db()
    assert (waiting.state, waiting.flavor.slug) == (State.PROVISIONING, "small")
    results.mark_ready(waiting, endpoint="")
    waiting.refresh_from_db()
    # From now on it has the flavor on which it runs.
    assert (waiting.state, waiting.flavor_choices) == (State.RUNNING, [])


def test_queue_names_the_next_flavor_and_the_reason(two_models, make, alice, bob, team):
    asked(make, team, bob, "big", expected_s=2 * HOUR_S)
    for _ in range(2):
        asked(make, team, bob, "small", expected_s=HOUR_S)
    later = asked(make, team, alice, "big", "small")
    assert next_of(later) == AdmissionCode.FLAVOR_LATER
    assert stored_message(later.queue_entry.next_flavor).startswith("Next is Small")
    services.delete(actor=alice, workspace_id=later.pk)
    assert next_of(asked(make, team, alice, "small", "big")) == AdmissionCode.FLAVOR_FIRST
    patient = asked(make, team, alice, "big", "small", within_s=3 * HOUR_S)
    assert next_of(patient) == AdmissionCode.FLAVOR_WITHIN


def test_request_waits_for_an_earlier_flavor_that_is_free_soon(two_models, make, alice, bob, team, clock):
    asked(make, team, bob, "big", expected_s=1200)
    clock.shift(60)
    patient = asked(make, team, alice, "big", "small", within_s=1800)
    assert (patient.state, next_of(patient)) == (State.PENDING, AdmissionCode.FLAVOR_WITHIN)
    assert asked(make, team, alice, "big", "small", within_s=600).flavor.slug == "small"


def test_each_flavor_is_checked_against_its_quota(two_models, make, alice, team):
    Quota.objects.create(team=team, resource="gpu:a100", quota=0, borrowing_limit=0)
    rows_changed()
    assert asked(make, team, alice, "big", "small").flavor.slug == "small"
    Quota.objects.create(team=team, resource="gpu:t4", quota=0, borrowing_limit=0)
    rows_changed()
    assert preview(team, alice, "big", "small").outcome is Outcome.NEEDS_APPROVAL
    with pytest.raises(NeedsApproval):
        make(alice, "big", fallbacks=flavors("small"))


@pytest.mark.parametrize(("borrow_first", "expected"), [(True, "big"), (False, "small")])
def test_cohort_sets_borrowing_before_the_next_flavor(two_models, make, alice, team, borrow_first, expected):
    cohort = Cohort.objects.create(slug="all", name="All", borrow_first=borrow_first)
    lender = TeamFactory(slug="lender")
    for member, amounts in ((team, (0, 2000)), (lender, (1000, 0))):
        TeamShare.objects.create(team=member, cohort=cohort)
        for resource, quota in zip(("gpu:a100", "gpu:t4"), amounts, strict=True):
            Quota.objects.create(team=member, resource=resource, quota=quota)
    rows_changed()
    assert asked(make, team, alice, "big", "small").flavor.slug == expected


@pytest.mark.parametrize(("preempt_first", "preempts"), [(True, True), (False, False)])
def test_cohort_sets_preemption_before_the_next_flavor(
    two_models, make, alice, bob, team, settings, preempt_first, preempts
):
    settings.BERTH_MIN_RUN_S = 0
    cohort = Cohort.objects.create(slug="all", name="All", preempt_first=preempt_first)
    borrower = TeamFactory(slug="borrower")
    borrower.memberships.create(user=bob, role="member")
    for member, quota in ((team, 1000), (borrower, 0)):
        TeamShare.objects.create(team=member, cohort=cohort)
        Quota.objects.create(team=member, resource="gpu:a100", quota=quota)
    Flavor.objects.filter(slug="big").update(preemptible=True)
    rows_changed()
    held = make(bob, "big", team=borrower, expected_s=86_400, checkpointed=True)
    assert held.state == State.PROVISIONING
    waiting = make(alice, "big", fallbacks=flavors("small"))
    held.refresh_from_db()
    assert (held.preempting is not None) == preempts
    assert waiting.state == (State.PENDING if preempts else State.PROVISIONING)


def test_deleted_flavor_is_no_longer_a_choice(two_models, make, alice, bob, team):
    for slug in ("big", "small", "small"):
        asked(make, team, bob, slug)
    waiting = asked(make, team, alice, "big", "small")
    # Simulate a deletion: no row has this name any more.
    Flavor.objects.filter(slug="small").update(slug="gone")
    release("small")
    cycle.run()
    waiting.refresh_from_db()
    assert (waiting.state, next_of(waiting)) == (State.PENDING, AdmissionCode.FLAVOR_FIRST)


@pytest.mark.parametrize(
    ("slugs", "within_s", "field"),
    [
        (("big", "big"), 0, "flavors"),
        (("big", "sim-cpu"), 0, "flavors"),
        (("big", "small"), -60, "start_within_min"),
    ],
)
def test_invalid_flavor_lists_are_refused(two_models, make, alice, slugs, within_s, field, pool):
    with pytest.raises(InvalidInput) as refused:
        make(alice, slugs[0], fallbacks=flavors(*slugs[1:]), start_within_s=within_s)
    assert field in refused.value.field_errors


def test_page_and_rest_accept_a_flavor_list(two_models, as_user, with_token, alice, team):
    browser = as_user(alice)
    form = {"template": "jupyterlab", "flavor": "big", "team": team.slug, "second": "small"}
    page = browser.get("/workspaces/new/", {**form, "start_within": "30"}).content.decode()
    assert '<option value="small" selected>Small</option>' in page
    browser.post("/workspaces/new/", {**form, "start_within": "30", "start": "1"})
    made = Workspace.objects.get()
    assert (made.flavor.slug, made.start_within_s) == ("big", 1800)
    refused = browser.post("/workspaces/new/", {**form, "start_within": "soon", "start": "1"})
    assert (refused.status_code, 'id="later-problem"' in refused.content.decode()) == (400, True)
    api = with_token(alice)
    body = {"template": "jupyterlab", "flavors": ["big", "small"], "team": team.slug}

    def post(path: str, **more: Any) -> Any:
        return api.post(f"/api/v1/{path}", {**body, **more}, content_type="application/json")

    said = post("admission/preview").json()
    assert (said["outcome"], said["flavor"]) == ("fits_now", "small")
    shown = post("workspaces").json()
    assert (shown["flavor"], shown["flavors"]) == ("small", ["big", "small"])
    assert post("workspaces", flavor="big").status_code == 400
    queued = [post("workspaces").json() for _ in range(2)][1]
    sentence = queued["queue"]["next_flavor"]
    assert "Big" in sentence or "Small" in sentence
    assert sentence in browser.get("/queue/").content.decode()
