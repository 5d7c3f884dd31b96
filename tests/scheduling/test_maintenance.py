"""Maintenance: new work is refused as previewed, queued work waits, and the end needs no task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, NotPossible
from portal.fleet.inventory import counting, maintenance
from portal.fleet.inventory.device_states import DeviceState
from portal.fleet.inventory.models import Maintenance
from portal.fleet.inventory.selectors import devices_with_state
from portal.scheduling import cycle
from portal.scheduling.admission import assess
from portal.scheduling.codes import AdmissionCode
from portal.scheduling.engine.codes import WaitBasis
from portal.scheduling.verdicts import Outcome
from portal.workspaces import services as workspaces
from portal.workspaces.lifecycle import State
from tests.factories import FlavorFactory, WorkspaceFactory, simulated_pool
from tests.scheduling.test_admission import jupyter, small

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def close(pool: Any = None, *, begins_in: timedelta = -HOUR, ends_in: timedelta = HOUR) -> Maintenance:
    now = timezone.now()
    return maintenance.set_maintenance(
        actor=SYSTEM, pool=pool, begins_at=now + begins_in, ends_at=now + ends_in, reason="New switch."
    )


def test_preview_and_creation_give_the_same_refusal(local_pool, make, alice, team):
    row = close(local_pool)
    verdict = assess(template=jupyter(), flavor=small(), team=team, actor=alice)
    assert (verdict.outcome, verdict.reason.code) == (Outcome.IMPOSSIBLE, AdmissionCode.POOL_MAINTENANCE)
    assert verdict.reason.params["until"] == row.ends_at.isoformat()
    assert "New switch." in verdict.message
    assert verdict.next_action
    with pytest.raises(NotPossible) as refused:
        make(alice)
    assert refused.value.reason == verdict.reason


def test_form_shows_maintenance_before_submission(local_pool, as_user, alice, team):
    close(local_pool)
    page = as_user(alice).get("/workspaces/new/", {"flavor": "cpu-small"}).content.decode()
    assert "In maintenance" in page
    assert "is in maintenance until about" in page


def test_site_maintenance_refuses_starts_and_keeps_running_work(local_pool, alice, team, make):
    stopped = WorkspaceFactory(
        owner=alice, team=team, state=State.STOPPED, flavor=small(), template=jupyter()
    )
    placed = make(alice)
    cycle.run()
    close()
    with pytest.raises(NotPossible) as refused:
        workspaces.start(actor=alice, workspace_id=stopped.pk)
    assert refused.value.reason.code is AdmissionCode.SITE_MAINTENANCE
    cycle.run()
    placed.refresh_from_db()
    assert placed.state == State.PROVISIONING


def test_other_pools_accept_requests_during_maintenance(local_pool, catalog, tmp_path):
    other = simulated_pool(str(tmp_path), slug="other")
    close(local_pool)
    flavor = FlavorFactory(pool=other)
    assert assess(template=jupyter(), flavor=flavor).outcome is Outcome.FITS_NOW


def test_queued_work_starts_at_the_planned_end(local_pool, make, alice, clock):
    local_pool.nodes.update(cordoned=True)
    waiting = make(alice)
    local_pool.nodes.update(cordoned=False)
    row = close(local_pool, begins_in=-timedelta(seconds=1))
    cycle.run()
    waiting.refresh_from_db()
    entry = waiting.queue_entry
    assert waiting.state == State.PENDING
    assert entry.reason["code"] == AdmissionCode.POOL_MAINTENANCE
    assert (entry.eta_at, entry.eta_basis["code"]) == (row.ends_at, WaitBasis.MAINTENANCE_ENDS)
    # Caches expire at its end: no task runs and no row changes.
    clock.move_to(row.ends_at + timedelta(seconds=1), tick=False)
    cycle.run()
    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING


def test_planned_maintenance_begins_at_its_time(local_pool, catalog, clock):
    row = close(local_pool, begins_in=timedelta(minutes=1))
    assert assess(template=jupyter(), flavor=small()).outcome is Outcome.FITS_NOW
    clock.move_to(row.begins_at, tick=False)
    assert assess(template=jupyter(), flavor=small()).reason.code is AdmissionCode.POOL_MAINTENANCE
    maintenance.end(actor=SYSTEM, pool=local_pool)
    assert assess(template=jupyter(), flavor=small()).outcome is Outcome.FITS_NOW


def test_consecutive_maintenance_of_site_and_pool_ends_with_the_last(local_pool, clock):
    close(ends_in=HOUR)
    last = close(local_pool, begins_in=HOUR, ends_in=2 * HOUR)
    assert assess(template=jupyter(), flavor=small()).reason.params["until"] == last.ends_at.isoformat()


def test_no_gpu_is_counted_as_free_during_maintenance(pool):
    close(pool)
    states = set(devices_with_state().values_list("state", flat=True))
    assert states == {DeviceState.MAINTENANCE.value}
    counts = counting.site()
    assert counts
    assert {count.free for count in counts.values()} == {0}
    assert all(count.in_service for count in counts.values())


def test_only_operators_set_maintenance(local_pool, alice):
    now = timezone.now()
    with pytest.raises(NotAllowed):
        maintenance.set_maintenance(actor=alice, pool=None, ends_at=now + HOUR, reason="x")
