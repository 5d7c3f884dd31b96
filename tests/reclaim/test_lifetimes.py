"""The end of workspaces: defaults, requested lifetimes, extensions and their limits."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.catalog.models import Flavor, Template
from portal.common.errors import InvalidInput, NotAllowed, StateConflict
from portal.common.events.models import Event
from portal.people.accounts.models import Team
from portal.quota.ledger.models import LedgerAccount
from portal.quota.reservations.models import Reservation, ReservationState
from portal.reclaim import bar
from portal.reclaim.codes import LifetimeCode
from portal.workspaces import extending, services
from portal.workspaces.codes import ExtensionCode
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from tests import sites
from tests.rows import reloaded
from tests.workspaces.helpers import answer, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.one_machine
HOUR = 3600


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_LIFETIME_HOURS, settings.BERTH_MAX_LIFETIME_HOURS = 72, 336


def test_lifetime_begins_when_the_workspace_is_ready(make, alice, local_pool, sent, clock):
    workspace = make(alice)
    assert (workspace.lifetime_s, workspace.ends_at, workspace.runs_until) == (72 * HOUR, None, None)
    clock.shift(600)
    run_until_ready(sent, workspace)
    workspace = reloaded(workspace)
    assert workspace.runs_until == workspace.ready_at + timedelta(hours=72)


@pytest.mark.parametrize(
    ("site", "flavor", "given"),
    [
        ((72, 336), (None, None), 72),
        ((72, 336), (5, None), 5),
        ((72, 336), (None, 10), 10),
        ((72, 336), (0, None), 336),
        ((72, 336), (0, 0), None),
        ((0, 0), (None, None), None),
        ((0, 24), (None, None), 24),
    ],
)
def test_lifetime_is_set_by_flavor_and_site(make, alice, local_pool, settings, site, flavor, given):
    settings.BERTH_LIFETIME_HOURS, settings.BERTH_MAX_LIFETIME_HOURS = site
    Flavor.objects.filter(slug="cpu-small").update(
        default_lifetime_hours=flavor[0], max_lifetime_hours=flavor[1]
    )
    assert make(alice).lifetime_s == (None if given is None else given * HOUR)


@pytest.mark.parametrize(
    ("template", "flavor", "default", "longest"),
    [
        ((8, None), (None, None), 8, 336),
        ((8, None), (5, None), 5, 336),
        ((8, 24), (12, 48), 8, 24),
        ((12, 48), (8, 24), 8, 24),
        ((None, 4), (8, None), 4, 4),
        ((0, 0), (None, None), None, None),
        ((0, 0), (8, 24), 8, 24),
        ((8, 24), (0, 0), 8, 24),
    ],
)
def test_shorter_limit_of_template_and_flavor_applies(
    make, alice, local_pool, template, flavor, default, longest
):
    for model, slug, (default_h, max_h) in (
        (Template, "jupyterlab", template),
        (Flavor, "cpu-small", flavor),
    ):
        model.objects.filter(slug=slug).update(default_lifetime_hours=default_h, max_lifetime_hours=max_h)
    workspace = make(alice)
    assert workspace.template.slug == "jupyterlab"
    assert workspace.lifetime_s == (None if default is None else default * HOUR)
    workspace = reloaded(workspace)
    assert extending.max_lifetime_s(workspace) == (None if longest is None else longest * HOUR)
    if longest is not None:
        with pytest.raises(InvalidInput) as refused:
            make(alice, lifetime_s=longest * HOUR + 1)
        assert refused.value.reason.params["max_s"] == longest * HOUR


def test_requested_lifetime_is_applied_and_used_by_estimates(make, alice, local_pool):
    workspace = make(alice, lifetime_s=2 * HOUR)
    assert (workspace.lifetime_s, workspace.expected_s) == (2 * HOUR, 2 * HOUR)
    both = make(alice, lifetime_s=4 * HOUR, expected_s=HOUR)
    assert (both.lifetime_s, both.expected_s) == (4 * HOUR, HOUR)


def test_requested_lifetime_above_the_default_applies(make, alice, local_pool):
    workspace = make(alice, expected_s=100 * HOUR)
    assert (workspace.lifetime_s, workspace.expected_s) == (100 * HOUR, 100 * HOUR)
    longest = make(alice, expected_s=700 * HOUR)
    assert (longest.lifetime_s, longest.expected_s) == (336 * HOUR, 336 * HOUR)


@pytest.mark.parametrize(("seconds", "code"), [(59, "lifetime_too_short"), (337 * HOUR, "lifetime_too_long")])
def test_lifetime_out_of_range_is_refused_at_its_field(make, alice, local_pool, seconds, code):
    with pytest.raises(InvalidInput) as refused:
        make(alice, lifetime_s=seconds)
    assert refused.value.reason.code == code
    assert "lifetime_hours" in refused.value.extra["errors"]
    assert not Workspace.objects.exists()


def test_extension_moves_the_end_and_estimates_and_is_audited(running, alice):
    before = running.ends_at
    done = extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR)
    kept = reloaded(running)
    assert kept.ends_at == done.workspace.ends_at == before + timedelta(hours=2)
    assert kept.expected_s == round((kept.ends_at - kept.placed_at).total_seconds())
    assert kept.ends_version == running.ends_version + 1
    entry = Event.objects.get(kind="workspace.extended")
    assert (entry.actor, entry.data["seconds"]) == (alice, 7200)


def test_extension_is_limited_to_the_maximum_lifetime(running, alice):
    extending.extend(actor=alice, workspace_id=running.pk, seconds=264 * HOUR)
    assert reloaded(running).ends_at == running.ready_at + timedelta(hours=336)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    assert refused.value.reason.code is ExtensionCode.AT_LONGEST_LIFETIME


@pytest.mark.parametrize(
    ("seconds", "code"), [(899, "extension_too_short"), (265 * HOUR, "extension_too_long")]
)
def test_too_short_and_too_long_extensions_are_refused(running, alice, seconds, code):
    with pytest.raises(InvalidInput) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=seconds)
    assert refused.value.reason.code == code
    assert reloaded(running).ends_at == running.ends_at


def test_extension_past_the_end_counts_from_now(running, alice, clock):
    clock.move_to(running.ends_at + timedelta(hours=1))
    extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    assert reloaded(running).ends_at == timezone.now() + timedelta(hours=1)


def test_repeated_key_extends_once(running, alice):
    first, second = (
        extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR, idempotency_key="k")
        for _ in range(2)
    )
    assert (first.replayed, second.replayed) == (False, True)
    assert reloaded(running).ends_at == running.ends_at + timedelta(hours=1)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR, idempotency_key="k")
    assert refused.value.code == "idempotency_key_reused"


def test_key_of_the_creation_can_be_reused_for_the_extension(make, alice, sent, local_pool):
    made = make(alice, idempotency_key="k")
    run_until_ready(sent, made)
    extended = extending.extend(actor=alice, workspace_id=made.pk, seconds=HOUR, idempotency_key="k")
    assert not extended.replayed and make(alice, idempotency_key="k") == made


def test_refused_extension_does_not_use_up_its_key(running, alice):
    with pytest.raises(InvalidInput):
        extending.extend(actor=alice, workspace_id=running.pk, seconds=1, idempotency_key="k")
    assert not extending.extend(
        actor=alice, workspace_id=running.pk, seconds=HOUR, idempotency_key="k"
    ).replayed


def test_workspace_of_another_user_cannot_be_extended(running, bob, charlie):
    for stranger in (bob, charlie):
        with pytest.raises(NotAllowed):
            extending.extend(actor=stranger, workspace_id=running.pk, seconds=HOUR)


def test_workspace_not_running_or_without_end_is_not_extended(running, alice):
    Workspace.objects.filter(pk=running.pk).update(ends_at=None)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    assert refused.value.reason.code is ExtensionCode.HAS_NO_END
    Workspace.objects.filter(pk=running.pk).update(state=State.STOPPING)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    assert refused.value.reason.code is ExtensionCode.NOT_RUNNING_NOW


def test_team_without_gpu_hours_cannot_extend_gpu_workspaces(running, alice):
    now = timezone.now()
    LedgerAccount.objects.create(
        team=running.team, quota=10, spent=10, period_started_at=now, charged_until=now
    )
    assert extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    running.resources["accelerators"]["count"] = 1
    Workspace.objects.filter(pk=running.pk).update(resources=running.resources)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)
    assert refused.value.reason.code is LifetimeCode.HOURS_SPENT


def test_workspace_that_is_not_preemptible_is_not_extended_into_a_reservation(running, alice):
    name = next(iter(running.amounts))
    begins = running.ends_at + timedelta(hours=1)
    Reservation.objects.create(
        team=Team.objects.create(name="Audio", slug="audio"),
        title="Course",
        amounts={name: 1},
        starts_at=begins,
        ends_at=begins + timedelta(hours=5),
        state=ReservationState.BOOKED,
    )
    Workspace.objects.filter(pk=running.pk).update(preemptible=False)
    with pytest.raises(StateConflict) as refused:
        extending.extend(actor=alice, workspace_id=running.pk, seconds=2 * HOUR)
    assert refused.value.reason.code is LifetimeCode.BOOKED_BEFORE
    assert extending.extend(actor=alice, workspace_id=running.pk, seconds=HOUR)


def test_new_start_has_a_new_lifetime(running, alice, sent, clock, settings):
    services.stop(actor=alice, workspace_id=running.pk)
    assert reloaded(running).runs_until is None
    answer(sent, "stop", "absent")
    clock.shift(5000)
    settings.BERTH_MAX_LIFETIME_HOURS = 10
    services.start(actor=alice, workspace_id=running.pk)
    started = reloaded(running)
    assert (started.ends_at, started.lifetime_s) == (None, 10 * HOUR)
    run_until_ready(sent, started)
    started = reloaded(running)
    assert started.runs_until == started.ready_at + timedelta(hours=10)


def test_card_page_and_notebook_show_the_same_end(running, alice, clock, client):
    clock.shift(running.runs_until - timezone.now() - timedelta(days=2, hours=23, minutes=59))
    client.force_login(alice)
    said = bar.describe(running.external_name)
    assert said is not None and said["ends"]["left"] == "2 d 23 h left"
    card, page = client.get("/").content.decode(), client.get(f"/workspaces/{running.pk}/").content.decode()
    left = re.compile(r"<time [^>]*data-until><span>2 d 23 h</span>")
    assert len(left.findall(card)) == 1
    assert len(left.findall(page)) == 2 and re.search(r"</time> left of 3 d\.", page)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (
            (72, 336),
            "After 3 days by default. Files are kept, and you can extend it up to 14 days.",
        ),
        ((30, 0), "After 30 hours by default. Files are kept, and you can extend it."),
        ((0, 0), "No end by default."),
        ((0, 4), "After up to 4 hours. Files are kept, and you can start it again."),
    ],
)
def test_form_shows_when_the_workspace_stops(alice, local_pool, team, client, settings, site, words):
    settings.BERTH_LIFETIME_HOURS, settings.BERTH_MAX_LIFETIME_HOURS = site
    client.force_login(alice)
    assert words in client.get("/workspaces/new/").content.decode()
