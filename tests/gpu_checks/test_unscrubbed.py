"""Memory of a shared GPU is cleared before it is reused."""

from __future__ import annotations

import pytest

from portal.common.actors import SYSTEM
from portal.fleet.inventory import counting, selectors
from portal.fleet.inventory.cordons import lift_cordon
from portal.fleet.inventory.models import AllocatedDevice, CordonCause, Device, Node, Pool
from portal.gpu_checks import policy, preflight, runs, settings
from portal.gpu_checks.models import CheckCause, CheckKind, GpuCheckRun
from portal.scheduling import capacity, cycle, launches
from portal.scheduling.engine.codes import PlacementCode
from portal.workspaces import services
from portal.workspaces.domain_events import AllocationsReleased
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.share_messages import PROVIDES_SHARES
from tests.factories import FlavorFactory, node_info
from tests.gpu_checks.helpers import checked_pool, commands, fresh, only, scrubbed
from tests.snapshots import rows_changed
from tests.sweeps import sweep
from tests.workspaces.helpers import answer as node_says
from tests.workspaces.helpers import check_invariants, run_until_ready

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpu(clock, catalog) -> Device:
    """The only GPU of a real pool that offers shares, without preflight checks."""
    pool = checked_pool(node_info(gpus=1, provides=(PROVIDES_SHARES,)))
    Pool.objects.filter(pk=pool.pk).update(hand_out_max_age_hours=0, check_every_hours=0)
    FlavorFactory(slug="half", accelerator_count=1, accelerator_milli=500)
    return Device.objects.get(node__pool=pool)


@pytest.fixture
def two_workspaces(gpu, make, alice, bob, sent) -> list[Workspace]:
    """Two running workspaces with half of the GPU each."""
    found = []
    for user in (alice, bob):
        workspace = make(user, "half")
        run_until_ready(sent, workspace)
        found.append(workspace)
    return found


def release_gpu(workspace: Workspace, sent) -> None:
    services.delete(actor=workspace.owner, workspace_id=workspace.pk)
    assert node_says(sent, "delete", "absent")


def never_began(workspace: Workspace) -> None:
    """Release the GPU before any program ran."""
    held = AllocatedDevice.objects.filter(allocation__workspace=workspace, active=True)
    devices = tuple(held.values_list("device_id", flat=True))
    held.update(active=False)
    preflight.scrub_after(AllocationsReleased(workspace, devices, used=False))


def placed_as(device: Device) -> PlacementCode | None:
    """The scheduler's reason against placement on the GPU, which must match the counts."""
    pool = device.node.pool
    nodes = capacity.load([pool])[pool.pk]
    (found,) = nodes.nodes[0].devices
    counts = counting.counts_by_pool(Node.objects.filter(pool=pool))[pool.pk]
    (name,) = [count for count in counts if count.startswith("gpu:")]
    assert capacity.total_capacity([nodes]).get(name, 0) == counts[name].schedulable
    assert bool(counts[name].free) == (found.unusable is None and found.free_milli > 0)
    return found.unusable.code if found.unusable else None


def state_of(device: Device):
    (found,) = selectors.devices_with_state().filter(pk=device.pk)
    return found


def test_shared_gpu_is_not_reused_until_all_have_left(two_workspaces, gpu, make, alice, sent):
    first, second = two_workspaces
    assert placed_as(gpu) is None
    release_gpu(first, sent)
    assert fresh(gpu).unscrubbed and not commands(sent)
    assert placed_as(gpu) is PlacementCode.DEVICE_UNSCRUBBED
    waiting = make(alice, "half")
    assert waiting.state == State.PENDING
    assert (state_of(gpu).state, state_of(gpu).kept_back) == ("shared", True)
    release_gpu(second, sent)
    scrub = only(sent)
    assert (scrub.kind, GpuCheckRun.objects.get().cause) == ("scrub", CheckCause.RECLAIM)
    assert scrubbed(scrub)
    assert not fresh(gpu).unscrubbed
    cycle.run()
    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING
    check_invariants()


def test_page_shows_why_the_rest_is_unavailable(two_workspaces, gpu, alice, sent, as_user):
    words = "New shares start after all others end"
    assert words not in as_user(alice).get(f"/gpus/devices/{gpu.pk}/").content.decode()
    release_gpu(two_workspaces[0], sent)
    assert words in as_user(alice).get(f"/gpus/devices/{gpu.pk}/").content.decode()


def test_device_unused_by_the_last_user_is_scrubbed_for_earlier_ones(two_workspaces, gpu, sent):
    release_gpu(two_workspaces[0], sent)
    never_began(two_workspaces[1])
    assert only(sent).kind == "scrub"


def test_unused_device_is_not_scrubbed(two_workspaces, gpu, sent):
    for each in two_workspaces:
        never_began(each)
    assert not commands(sent) and not fresh(gpu).unscrubbed


@pytest.mark.parametrize("every_h", [0, 168])
def test_policy_scrubs_empty_unscrubbed_devices(gpu, sent, every_h):
    """For example, a check was open at the last release."""
    Pool.objects.update(check_every_hours=every_h)
    Device.objects.update(unscrubbed=True)
    assert placed_as(gpu) is PlacementCode.DEVICE_UNSCRUBBED
    assert (state_of(gpu).state, state_of(gpu).kept_back) == ("checking", True)
    assert policy.run() == 1
    assert policy.run() == 0
    scrub = only(sent)
    assert scrub.kind == "scrub"
    assert placed_as(gpu) is PlacementCode.DEVICE_CHECKING
    assert scrubbed(scrub)
    assert placed_as(gpu) is None and state_of(gpu).state == "free"


def test_check_open_at_the_last_release_does_not_replace_a_scrub(two_workspaces, gpu, sent):
    release_gpu(two_workspaces[0], sent)
    never_began(two_workspaces[1])
    GpuCheckRun.objects.update(kind=CheckKind.CHECK)
    run = GpuCheckRun.objects.get()
    runs.close(runs.locked_run(run.pk), "done", verdict="pass")
    assert placed_as(gpu) is PlacementCode.DEVICE_UNSCRUBBED
    commands(sent)
    assert policy.run() == 1
    assert only(sent).kind == "scrub"


def test_policy_skips_devices_in_use(two_workspaces, gpu, sent):
    release_gpu(two_workspaces[0], sent)
    assert policy.run() == 0
    assert not commands(sent)


def test_unclean_memory_cordons_the_device_until_an_operator_uncordons(two_workspaces, gpu, sent, olga):
    for each in two_workspaces:
        release_gpu(each, sent)
    assert scrubbed(only(sent), "leak")
    assert (fresh(gpu).cordon_cause, fresh(gpu).unscrubbed) == (CordonCause.SCRUB, True)
    lift_cordon(actor=olga, device_id=gpu.pk)
    assert placed_as(gpu) is None


def test_lifting_an_operator_cordon_does_not_clear_unscrubbed(gpu, olga, sent):
    Device.objects.update(unscrubbed=True, cordoned=True, cordon_cause=CordonCause.OPERATOR)
    assert policy.run() == 0
    lift_cordon(actor=olga, device_id=gpu.pk)
    assert placed_as(gpu) is PlacementCode.DEVICE_UNSCRUBBED


def test_devices_are_reusable_without_required_scrubs(two_workspaces, gpu, make, alice, sent):
    Pool.objects.update(scrub_required=False)
    release_gpu(two_workspaces[0], sent)
    assert not fresh(gpu).unscrubbed
    assert make(alice, "half").state == State.PROVISIONING


def test_disabling_scrubs_releases_waiting_devices(two_workspaces, gpu, make, alice, sent, olga):
    release_gpu(two_workspaces[0], sent)
    waiting = make(alice, "half")
    assert waiting.state == State.PENDING
    settings.set_checks(actor=olga, slug="this-machine", scrub_required=False)
    assert not fresh(gpu).unscrubbed
    cycle.run()
    waiting.refresh_from_db()
    assert waiting.state == State.PROVISIONING


@pytest.mark.parametrize("required", [False, True])
def test_simulated_gpus_wait_for_scrubs_only_if_required(pool, make, alice, bob, sent, required):
    Pool.objects.filter(pk=pool.pk).update(scrub_required=required, hand_out_max_age_hours=0)
    FlavorFactory(slug="part", pool=pool, accelerator_count=1, accelerator_milli=500)
    first, second = make(alice, "part"), make(bob, "part")
    device = Device.objects.filter(allocated__active=True).distinct().get()
    held = AllocatedDevice.objects.filter(allocation__workspace=first)
    held.update(active=False)
    preflight.scrub_after(AllocationsReleased(first, (device.pk,), used=True))
    assert fresh(device).unscrubbed is required
    assert second.state == State.PROVISIONING


def test_gpu_missing_at_release_is_scrubbed_after_its_return(two_workspaces, gpu, sent):
    for each in two_workspaces:
        Device.objects.update(present=False)
        release_gpu(each, sent)
    assert not commands(sent) and fresh(gpu).unscrubbed
    Device.objects.update(present=True)
    assert placed_as(gpu) is PlacementCode.DEVICE_UNSCRUBBED
    assert policy.run() == 1
    assert scrubbed(only(sent))
    assert placed_as(gpu) is None


def test_gpu_partitioned_while_unscrubbed_offers_its_instances(gpu):
    Device.objects.update(unscrubbed=True, mig_mode=True)
    assert not state_of(gpu).kept_back
    (found,) = capacity.load([gpu.node.pool])[gpu.node.pool_id].nodes[0].devices
    assert found.unusable is None


def test_system_uncordon_after_a_scrub_clears_unscrubbed(gpu):
    """A clean scrub lifts its own cordon and clears the flag."""
    Device.objects.update(unscrubbed=True, cordoned=True, cordon_cause=CordonCause.SCRUB)
    lift_cordon(actor=SYSTEM, device_id=gpu.pk)
    assert not fresh(gpu).unscrubbed


@pytest.mark.parametrize("flag", ["checking", "unscrubbed"])
def test_share_allocated_during_the_last_release_is_withdrawn(gpu, make, alice, sent, monkeypatch, flag):
    """The scrub started after the cycle read the device and before it wrote."""
    allocate = launches._allocate

    def later(starts, now):
        Device.objects.update(**{flag: True})
        return allocate(starts, now)

    monkeypatch.setattr(launches, "_allocate", later)
    workspace = make(alice, "half")
    workspace.refresh_from_db()
    assert (workspace.state, workspace.lease) == (State.PROVISIONING, "")
    assert not sent.commands
    monkeypatch.setattr(launches, "_allocate", allocate)
    sweep()
    workspace = Workspace.objects.select_related("status").get(pk=workspace.pk)
    assert workspace.state == State.PENDING
    assert workspace.status.reason["code"] == "gpu_share_withdrawn"
    assert not sent.commands
    check_invariants()
    Device.objects.update(checking=False, unscrubbed=False)
    rows_changed()
    cycle.run()
    workspace.refresh_from_db()
    assert workspace.state == State.PROVISIONING and len(sent.commands) == 1
