"""Releasing and attaching GPUs: by users, by reclaim, in races, refused, and interrupted."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.test import override_settings
from django.utils import timezone

from portal.common.actors import SYSTEM
from portal.common.errors import NotAllowed, StateConflict
from portal.common.events.models import Event, Notification
from portal.common.reasons.reason import Reason
from portal.fleet.inventory.models import Pool
from portal.reclaim import bar, keeping, passes, policy_presenters, policy_services, presenters, previews
from portal.reclaim.models import IdlePeriod, LastPass, ReclaimNotice, ReclaimPolicy, WorkspaceActivity
from portal.scheduling.codes import AdmissionCode
from portal.workspaces import gpus, reconcile, services
from portal.workspaces.lifecycle import DesiredState, State
from portal.workspaces.models import Workspace
from tests import sites
from tests.factories import FlavorFactory, local_pool_with, node_info, simulated_pool
from tests.reclaim.restarts import allocated_devices, restarted
from tests.rows import reloaded
from tests.sweeps import sweep
from tests.workspaces.helpers import answer, check_invariants, run_until_ready

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite]
WORLD = sites.with_catalog
FLAVOR = "one-gpu"
REFUSAL = Reason(AdmissionCode.NO_ENABLED_POOL)


@pytest.fixture(autouse=True)
def _site(settings):
    settings.BERTH_IDLE_MINUTES, settings.BERTH_IDLE_GPU_MINUTES = 0, 120
    settings.BERTH_RECLAIM_NOTICE_MINUTES = 30
    settings.BERTH_RELEASED_CORES, settings.BERTH_RELEASED_MEMORY_GIB = 2, 32
    settings.BERTH_LIFETIME_HOURS = settings.BERTH_MAX_LIFETIME_HOURS = 0


@pytest.fixture
def node(catalog):
    """One node with one GPU of the local driver; no real hardware."""
    FlavorFactory(slug=FLAVOR, accelerator_count=1, cpu_milli=3000)
    made = local_pool_with(node_info(gpus=1))
    Pool.objects.update(hand_out_max_age_hours=0)
    return made


@pytest.fixture
def accelerated(node, make, alice, sent) -> Workspace:
    """A workspace on the only GPU."""
    workspace = make(alice, FLAVOR)
    run_until_ready(sent, workspace)
    return reloaded(workspace)


def test_released_gpus_are_freed_while_the_workspace_keeps_running(accelerated, alice, sent):
    before = accelerated.resources
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    leaving = reloaded(accelerated)
    assert (leaving.state, leaving.desired_state) == (State.STOPPING, DesiredState.RUNNING)
    # Still allocated: no end has been observed.
    assert allocated_devices() == 1
    assert leaving.amounts["gpu"] == 1000
    check_invariants()
    runs = restarted(accelerated, sent)
    assert (runs.state, runs.gpu_released, allocated_devices()) == (State.RUNNING, True, 0)
    assert runs.resources["accelerators"]["count"] == 0
    small = {"accelerators": 0, "cpu_milli": 2000, "memory_mib": 1024}
    assert {**runs.resources, **small} == {**before, **small}
    assert (runs.resources["cpu_milli"], runs.resources["memory_mib"]) == (2000, 1024)
    assert not runs.amounts.get("gpu")
    check_invariants()
    entry = Event.objects.get(kind="workspace.gpu_released")
    assert (entry.actor, entry.cause) == (alice, {})
    # Idempotent.
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    assert reloaded(accelerated).state == State.RUNNING


def test_attached_workspace_queues_and_gets_its_gpus_again(accelerated, alice, make, sent):
    before = accelerated.resources
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    runs = restarted(accelerated, sent)
    other = make(alice, FLAVOR)
    assert other.state == State.PROVISIONING
    sent.clear()
    gpus.attach(actor=alice, workspace_id=runs.pk)
    assert answer(sent, "stop", "absent")
    sweep()
    waits = reloaded(runs)
    assert (waits.state, waits.gpu_released, waits.resources) == (State.PENDING, False, before)
    assert waits.queue_entry.position == 1
    assert waits.queue_entry.reason
    assert waits.requested_at > other.requested_at
    # A user who does not want to wait continues without GPUs.
    gpus.release(actor=alice, workspace_id=runs.pk)
    assert reloaded(runs).state == State.PROVISIONING
    assert allocated_devices() == 1


def test_next_in_the_queue_gets_the_released_gpu(catalog, tmp_path, make, alice, bob, run_node):
    simulated_pool(str(tmp_path / "sim"), slug="sim", nodes=1, gpus=1)
    first = make(alice, "sim-h100-x1")
    run_node()
    assert reloaded(first).state in (State.PROVISIONING, State.RUNNING)
    Workspace.objects.filter(pk=first.pk, state=State.PROVISIONING).update(next_reconcile_at=timezone.now())
    sweep()
    run_node()
    assert reloaded(first).state == State.RUNNING
    second = make(bob, "sim-h100-x1")
    assert reloaded(second).state == State.PENDING
    gpus.release(actor=alice, workspace_id=first.pk)
    for _ in range(4):
        Workspace.objects.filter(next_reconcile_at__isnull=False).update(next_reconcile_at=timezone.now())
        sweep()
        run_node()
    assert reloaded(first).gpu_released
    assert (reloaded(first).state, reloaded(second).state) == (State.RUNNING, State.RUNNING)
    check_invariants()


def test_stop_wins_over_a_release_and_next_start_has_no_gpus(accelerated, alice, sent):
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    services.stop(actor=alice, workspace_id=accelerated.pk)
    assert answer(sent, "stop", "absent")
    assert reloaded(accelerated).state == State.STOPPED
    services.start(actor=alice, workspace_id=accelerated.pk)
    assert (reloaded(accelerated).state, allocated_devices()) == (State.PROVISIONING, 0)


def test_release_of_a_stopped_workspace_applies_at_once(accelerated, alice, sent):
    services.stop(actor=alice, workspace_id=accelerated.pk)
    assert answer(sent, "stop", "absent")
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    assert (reloaded(accelerated).state, reloaded(accelerated).gpu_released) == (State.STOPPED, True)
    gpus.attach(actor=alice, workspace_id=accelerated.pk)
    assert (reloaded(accelerated).state, reloaded(accelerated).gpu_released) == (State.STOPPED, False)
    assert not sent.commands


def test_release_is_refused_without_permission_or_in_a_wrong_state(accelerated, alice, bob, make):
    with pytest.raises(NotAllowed):
        gpus.release(actor=bob, workspace_id=accelerated.pk)
    with pytest.raises(StateConflict):
        gpus.attach(actor=alice, workspace_id=make(alice).pk)
    Workspace.objects.filter(pk=accelerated.pk).update(state=State.STOPPING)
    with pytest.raises(StateConflict) as refused:
        gpus.release(actor=alice, workspace_id=accelerated.pk)
    assert refused.value.reason.code == "gpu_not_changeable"
    assert not reloaded(accelerated).gpu_released


def test_refused_attach_keeps_the_workspace_running(accelerated, alice, sent, monkeypatch):
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    runs = restarted(accelerated, sent)

    class RefusesAll:
        def admit(self, workspace: Workspace, **_: object) -> None:
            raise StateConflict(REFUSAL)

    monkeypatch.setattr(gpus, "admission_policy", RefusesAll)
    with pytest.raises(StateConflict):
        gpus.attach(actor=alice, workspace_id=runs.pk)
    assert (reloaded(runs).state, reloaded(runs).gpu_released) == (State.RUNNING, True)
    assert not Event.objects.filter(kind="workspace.gpu_attached").exists()


def test_release_killed_between_its_steps_is_completed_by_the_sweep(accelerated, alice, sent):
    """The command is lost with its process and sent again after its lease."""
    gpus.release(actor=alice, workspace_id=accelerated.pk)
    sent.clear()
    Workspace.objects.update(lease_expires_at=timezone.now(), next_reconcile_at=timezone.now())
    reconcile.sweep()
    assert restarted(accelerated, sent).resources["accelerators"]["count"] == 0


# --- by reclaim -----------------------------------------------------------------------------------


def policy(target: str = "site", **given: object) -> ReclaimPolicy:
    return policy_services.create(actor=SYSTEM, target=target, values=given)


def idle(workspace: Workspace, minutes: float, *, gpu: float | None = None) -> passes.PassReport:
    """Run a pass after idle time of this length."""
    WorkspaceActivity.objects.update_or_create(
        workspace=workspace,
        defaults={
            "generation": reloaded(workspace).generation,
            "observed_at": timezone.now(),
            "idle_s": minutes * 60,
            "gpu_idle_s": (minutes if gpu is None else gpu) * 60,
            "report": json.dumps({"at_s": timezone.now().timestamp()}),
        },
    )
    workspace.status.heartbeat_at = None
    workspace.status.save()
    LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now() - timedelta(seconds=30)})
    return passes.run()


def test_gpus_are_released_once_after_the_notice(accelerated, alice, clock, sent, as_user):
    policy(release_gpu_minutes=60)
    assert idle(accelerated, 29) == passes.PassReport()
    assert idle(accelerated, 31).warned == 1
    notice = ReclaimNotice.objects.get()
    assert (notice.cause, notice.reason["code"]) == ("release", "released_by_idle")
    found = presenters.activity_of(reloaded(accelerated))
    assert (found["step"], found["idle_limit_s"]) == ("release", 3600)
    page = as_user(alice).get(f"/workspaces/{accelerated.pk}/").content.decode()
    assert "GPUs are released in" in page
    assert "Kernels lose their variables" in page
    # As sent to the gateway, which has no policy pages.
    with override_settings(ROOT_URLCONF="portal.stream_urls"):
        messages = bar.describe(accelerated.external_name)["messages"]
    (said,) = [each for each in messages if each["tone"] == "bad"]
    assert "The app restarts without GPUs" in said["text"]
    clock.shift(1801)
    assert idle(accelerated, 61).released == 1
    assert reloaded(accelerated).state == State.STOPPING
    assert Event.objects.get(kind="workspace.stop").cause["code"] == "released_by_idle"
    told = Notification.objects.filter(user=alice, kind="workspace.gpu_released").get()
    assert "GPUs of" in told.title and "released" in told.title
    runs = restarted(accelerated, sent)
    # A workspace without GPUs has no such limit.
    assert idle(runs, 600) == passes.PassReport()
    assert runs.gpu_released


@pytest.mark.parametrize("word", ["keep", "attach_policy_gone"])
def test_keeping_or_a_policy_change_withdraws_the_release_notice(accelerated, alice, word):
    made = policy(release_gpu_minutes=60)
    assert idle(accelerated, 45).warned == 1
    if word == "keep":
        keeping.keep_workspace(actor=alice, workspace_id=accelerated.pk)
        assert not ReclaimNotice.objects.exists()
    else:
        policy_services.change(
            actor=SYSTEM, policy_id=made.pk, values={"release_gpu_minutes": 0, "idle_gpu_minutes": 60}
        )
        # The stop has its own notice.
        assert idle(accelerated, 61).withdrawn == 1
        assert idle(accelerated, 61).warned == 1
        assert ReclaimNotice.objects.get().cause == "idle"
    assert reloaded(accelerated).state == State.RUNNING


def test_workspace_that_cannot_run_without_gpus_is_stopped(accelerated, clock, monkeypatch):
    policy(release_gpu_minutes=60)
    idle(accelerated, 31)
    clock.shift(1801)

    def refuse(**_given):
        raise StateConflict(REFUSAL)

    monkeypatch.setattr(gpus, "release", refuse)
    done = idle(accelerated, 61)
    assert (done.released, done.stopped) == (0, 1)
    assert reloaded(accelerated).desired_state == DesiredState.STOPPED


def test_preview_counts_releases_and_freed_time(accelerated, alice, clock):
    LastPass.objects.update_or_create(pk=1, defaults={"at": timezone.now(), "recorded_since": timezone.now()})
    began = timezone.now()
    clock.shift(8 * 3600)
    for kind in ("all", "gpu"):
        IdlePeriod.objects.create(
            workspace=accelerated,
            generation=accelerated.generation,
            kind=kind,
            began_at=began + timedelta(hours=1),
            ended_at=began + timedelta(hours=5),
        )
    draft = policy_services.draft(actor=SYSTEM, target="site", values={"release_gpu_minutes": 60})
    found = previews.preview(draft)
    assert (found.workspaces, found.stops, found.releases, found.interrupted) == (1, 1, 1, 0)
    assert found.gpu_hours == 3.0
    assert "released the GPUs of 1 workspace" in policy_presenters.preview_text(found)


def test_pages_and_rest_release_and_attach_gpus(accelerated, alice, as_user, with_token, sent, make):
    web, api = as_user(alice), with_token(alice, "workspaces:read", "workspaces:write")
    page = f"/workspaces/{accelerated.pk}/"
    assert "act-release-gpu" in web.get(page).content.decode()
    asked = web.get(f"{page}release-gpu/").content.decode()
    assert "variables of kernels" in asked
    assert "the app, which restarts" in asked
    web.post(f"{page}release-gpu/")
    assert "Releasing GPUs" in web.get(page).content.decode()
    restarted(accelerated, sent)
    body = web.get(page).content.decode()
    assert "act-attach-gpu" in body
    assert "GPUs released" in body
    row = api.get(f"/api/v1/workspaces/{accelerated.pk}").json()
    assert (row["gpu_released"], row["resources"]["accelerators"]["count"]) == (True, 0)
    listed = api.get("/api/v1/workspaces").json()["results"]
    assert [each["gpu_released"] for each in listed] == [True]
    assert "GPUs are free" in web.get(f"{page}attach-gpu/").content.decode()
    make(alice, FLAVOR)
    assert "GPUs are in use" in web.get(f"{page}attach-gpu/").content.decode()
    sent.clear()
    done = api.post(f"/api/v1/workspaces/{accelerated.pk}/attach-gpu")
    assert (done.status_code, done.json()["gpu_released"]) == (202, False)
    assert api.post(f"/api/v1/workspaces/{accelerated.pk}/attach-gpu").status_code == 202
