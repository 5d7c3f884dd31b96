"""Resizing a workspace: running, queued, stopped, released, refused, interrupted; and accounting."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.common.errors import NotAllowed, NotPossible, StateConflict
from portal.common.events.models import Event
from portal.fleet.inventory.models import Allocation, Pool
from portal.scheduling import admission
from portal.scheduling.engine.model import Outcome
from portal.workspaces import gpus, reconcile, resizing, services
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import FlavorFactory, TeamFactory, local_pool_with, node_info, simulated_pool
from tests.reclaim.restarts import allocated_devices, restarted
from tests.rows import reloaded
from tests.workspaces.helpers import answer, check_invariants, run_until_ready

pytestmark = pytest.mark.django_db
WORLD = sites.with_catalog


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_RELEASED_CORES, settings.BERTH_RELEASED_MEMORY_GIB = 2, 32
    settings.BERTH_LIFETIME_HOURS = settings.BERTH_MAX_LIFETIME_HOURS = 0


@pytest.fixture
def sizes(catalog):
    """Flavors, and one node with two GPUs, 8 cores and 16 GiB; no real hardware."""
    made = {
        "one": FlavorFactory(slug="one", accelerator_count=1, cpu_milli=3000, default_lifetime_hours=10),
        "two": FlavorFactory(
            slug="two", accelerator_count=2, cpu_milli=6000, preemptible=False, default_lifetime_hours=20
        ),
        "plain": FlavorFactory(slug="plain", cpu_milli=2000, memory_mib=1024),
        "three": FlavorFactory(slug="three", accelerator_count=3),
    }
    local_pool_with(node_info(gpus=2))
    Pool.objects.update(hand_out_max_age_hours=0)
    return made


@pytest.fixture
def runs(sizes, make, alice, sent) -> Workspace:
    workspace = make(alice, "one")
    run_until_ready(sent, workspace)
    return reloaded(workspace)


def test_running_workspace_restarts_with_the_new_size_through_the_queue(runs, sizes, alice, sent):
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    leaving = reloaded(runs)
    assert (leaving.state, leaving.desired_state) == (State.STOPPING, DesiredState.RUNNING)
    # Its allocation is kept until its end is observed.
    assert (allocated_devices(), leaving.amounts["gpu"]) == (1, 1000)
    check_invariants()
    # Repeated during the restart: idempotent.
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    after = restarted(runs, sent)
    assert (after.flavor.slug, allocated_devices(), after.amounts["gpu"]) == ("two", 2, 2000)
    assert (after.resources["cpu_milli"], after.resources["accelerators"]["count"]) == (6000, 2)
    # Its times are those of the new flavor.
    assert (after.preemptible, after.lifetime_s) == (False, 20 * 3600)
    check_invariants()
    entry = Event.objects.get(kind="workspace.resized")
    assert (entry.actor, entry.data) == (alice, {"before": "one", "flavor": "two"})
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    assert reloaded(runs).state == State.RUNNING
    assert Event.objects.filter(kind="workspace.resized").count() == 1


def test_requested_times_are_kept_within_the_limits_of_the_new_flavor(sizes, make, alice, sent):
    made = make(alice, "one", lifetime_s=5 * 3600, expected_s=3 * 3600)
    run_until_ready(sent, made)
    resizing.resize(actor=alice, workspace_id=made.pk, flavor=sizes["two"])
    assert (reloaded(made).lifetime_s, reloaded(made).expected_s) == (5 * 3600, 3 * 3600)
    short = FlavorFactory(slug="short", max_lifetime_hours=2)
    services.stop(actor=alice, workspace_id=made.pk)
    assert answer(sent, "stop", "absent")
    resizing.resize(actor=alice, workspace_id=made.pk, flavor=short)
    assert (reloaded(made).lifetime_s, reloaded(made).expected_s) == (2 * 3600, 2 * 3600)


def test_resize_applies_to_the_queued_request_or_the_next_start(runs, sizes, make, bob, sent):
    waits = make(bob, "two")
    assert waits.state == State.PENDING
    resizing.resize(actor=bob, workspace_id=waits.pk, flavor=sizes["one"])
    assert (reloaded(waits).state, reloaded(waits).flavor.slug) == (State.PROVISIONING, "one")
    sent.clear()
    stopped = make(bob, "plain", name="other")
    services.stop(actor=bob, workspace_id=stopped.pk)
    Workspace.objects.filter(pk=stopped.pk).update(state=State.STOPPED)
    sent.clear()
    resizing.resize(actor=bob, workspace_id=stopped.pk, flavor=sizes["two"])
    assert (reloaded(stopped).state, reloaded(stopped).resources["accelerators"]["count"]) == (
        State.STOPPED,
        2,
    )
    assert not sent.commands


def test_resize_of_a_released_workspace_applies_when_gpus_are_attached(runs, sizes, alice, sent):
    gpus.release(actor=alice, workspace_id=runs.pk)
    small = restarted(runs, sent)
    before = small.generation
    # Equal resources: no restart.
    resizing.resize(actor=alice, workspace_id=small.pk, flavor=sizes["two"])
    same = reloaded(small)
    assert (same.state, same.generation, same.gpu_released) == (State.RUNNING, before, True)
    assert same.flavor.slug == "two"
    assert (same.resources["accelerators"]["count"], same.resources["cpu_milli"]) == (0, 2000)
    assert not sent.commands
    gpus.attach(actor=alice, workspace_id=small.pk)
    whole = restarted(small, sent)
    assert (whole.resources["accelerators"]["count"], whole.resources["cpu_milli"], allocated_devices()) == (
        2,
        6000,
        2,
    )
    assert not whole.gpu_released


def test_resize_to_a_size_without_gpus_ends_the_release(runs, sizes, alice, sent):
    gpus.release(actor=alice, workspace_id=runs.pk)
    small = restarted(runs, sent)
    resizing.resize(actor=alice, workspace_id=small.pk, flavor=FlavorFactory(slug="large", cpu_milli=5000))
    after = restarted(small, sent)
    assert (after.gpu_released, after.resources["cpu_milli"], after.state) == (False, 5000, State.RUNNING)
    with pytest.raises(StateConflict):
        gpus.attach(actor=alice, workspace_id=small.pk)


def test_refused_resize_changes_nothing(runs, sizes, alice, bob):
    with pytest.raises(NotAllowed):
        resizing.resize(actor=bob, workspace_id=runs.pk, flavor=sizes["two"])
    # No node has three GPUs.
    with pytest.raises(NotPossible):
        resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["three"])
    reserved = FlavorFactory(slug="theirs", restricted=True)
    reserved.teams.add(TeamFactory())
    with pytest.raises(NotAllowed):
        resizing.resize(actor=alice, workspace_id=runs.pk, flavor=reserved)
    kept = reloaded(runs)
    assert (kept.state, kept.flavor.slug, kept.resources) == (State.RUNNING, "one", runs.resources)
    assert not Event.objects.filter(kind="workspace.resized").exists()
    Workspace.objects.filter(pk=runs.pk).update(state=State.STOPPING)
    with pytest.raises(StateConflict) as refused:
        resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    assert refused.value.reason.code == "workspace_not_resizable"


def test_resize_to_another_pool_is_refused(runs, sizes, alice, tmp_path):
    simulated_pool(str(tmp_path / "sim"), slug="sim", nodes=1, gpus=1)
    elsewhere = FlavorFactory(slug="elsewhere", pool=Pool.objects.get(slug="sim"))
    with pytest.raises(StateConflict) as refused:
        resizing.resize(actor=alice, workspace_id=runs.pk, flavor=elsewhere)
    assert refused.value.reason.code == "files_in_another_pool"
    assert reloaded(runs).flavor.slug == "one"


def test_resize_killed_between_its_steps_is_completed_by_the_sweep(runs, sizes, alice, sent):
    """The command is lost with its process and sent again after its lease."""
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    sent.clear()
    Workspace.objects.update(lease_expires_at=timezone.now(), next_reconcile_at=timezone.now())
    reconcile.sweep()
    assert restarted(runs, sent).flavor.slug == "two"


def test_stop_wins_over_a_resize_and_next_start_has_the_new_size(runs, sizes, alice, sent):
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["plain"])
    services.stop(actor=alice, workspace_id=runs.pk)
    assert answer(sent, "stop", "absent")
    assert reloaded(runs).state == State.STOPPED
    services.start(actor=alice, workspace_id=runs.pk)
    assert (reloaded(runs).state, allocated_devices()) == (State.PROVISIONING, 0)


# --- expected start -------------------------------------------------------------------------------


def test_resize_verdict_counts_own_allocation_as_free(runs, sizes, make, bob):
    """Two GPUs are free for the workspace that returns one, not for others."""
    for _ in range(2):
        two, three, plain = admission.assess_resize(
            reloaded(runs), [sizes["two"], sizes["three"], sizes["plain"]]
        )
        assert (two.outcome, three.outcome) == (Outcome.FITS_NOW, Outcome.IMPOSSIBLE)
        assert plain.outcome is Outcome.FITS_NOW
    other = admission.assess(template=runs.template, flavor=sizes["two"], team=runs.team, actor=bob)
    assert other.outcome is Outcome.QUEUED
    # The other GPU is in use, so it would wait now.
    make(bob, "one")
    (two,) = admission.assess_resize(reloaded(runs), [sizes["two"]])
    assert two.outcome is Outcome.QUEUED
    check_invariants()


def test_pending_request_does_not_block_its_own_resize(sizes, make, alice, bob, sent):
    first = make(bob, "two")
    assert first.state == State.PROVISIONING
    waits = make(alice, "two")
    (verdict,) = admission.assess_resize(reloaded(waits), [sizes["one"]])
    assert (verdict.outcome, verdict.position) == (Outcome.QUEUED, 1)


# --- accounting -----------------------------------------------------------------------------------


def test_usage_before_a_resize_counts_for_the_old_flavor(runs, sizes, alice, sent, clock):
    from portal.reports import days
    from portal.reports.models import Dimension, GpuDay

    for name, cents in (("one", 100), ("two", 1000)):
        sizes[name].price_cents = cents
        sizes[name].save()
    begin = timezone.now().replace(hour=6, minute=0, second=0, microsecond=0) - timedelta(days=1)
    Allocation.objects.update(granted_at=begin)
    resizing.resize(actor=alice, workspace_id=runs.pk, flavor=sizes["two"])
    restarted(runs, sent)
    Allocation.objects.filter(flavor="one").update(released_at=begin + timedelta(hours=2))
    Allocation.objects.filter(flavor="two").update(granted_at=begin + timedelta(hours=2))
    days.write(begin.date(), now=begin + timedelta(hours=3))
    rows = GpuDay.objects.filter(team="", dimension=Dimension.FLAVOR)
    found = {row.key: (row.held, row.cost) for row in rows}
    # Two hours of one GPU at 1.00, one hour of two at 10.00 together.
    assert found == {"one": (2 * 3_600_000, 200_000), "two": (2 * 3_600_000, 1_000_000)}


# --- pages and REST -------------------------------------------------------------------------------


def test_resize_page_shows_effects_and_expected_start_and_resizes(
    runs, sizes, alice, bob, as_user, make, sent
):
    web, page = as_user(alice), f"/workspaces/{runs.pk}/"
    assert "act-resize" in web.get(page).content.decode()
    asked = web.get(f"{page}resize/").content.decode()
    assert "the app, which restarts" in asked
    assert "variables of kernels" in asked
    assert "Starts now" in asked
    assert "Not possible" in asked
    assert 'value="one"' not in asked
    make(bob, "one")
    assert "Queue" in web.get(f"{page}resize/?flavor=two").content.decode()
    assert web.post(f"{page}resize/").status_code == 400
    refused = web.post(f"{page}resize/", {"flavor": "three"})
    assert refused.status_code == 409 or refused.status_code == 422
    assert reloaded(runs).state == State.RUNNING
    done = web.post(f"{page}resize/", {"flavor": "plain"})
    assert (done.status_code, done["Location"]) == (302, page)
    assert reloaded(runs).state == State.STOPPING
    assert "No other size available" in web.get(f"{page}resize/").content.decode()


def test_workspace_is_resized_over_rest(runs, sizes, alice, with_token, sent):
    api = with_token(alice, "workspaces:read", "workspaces:write")
    there = f"/api/v1/workspaces/{runs.pk}"
    etag = api.get(there)["ETag"]
    assert api.post(f"{there}/resize", {"flavor": "no"}, content_type="application/json").status_code == 400
    done = api.post(
        f"{there}/resize", {"flavor": "two"}, content_type="application/json", headers={"If-Match": etag}
    )
    assert (done.status_code, done.json()["flavor"], done.json()["state"]) == (202, "two", "stopping")
    assert done.json()["resources"]["accelerators"]["count"] == 2
    again_ = api.post(
        f"{there}/resize", {"flavor": "two"}, content_type="application/json", headers={"If-Match": etag}
    )
    assert again_.status_code == 412
    assert api.post(f"{there}/resize", {"flavor": "two"}, content_type="application/json").status_code == 202
