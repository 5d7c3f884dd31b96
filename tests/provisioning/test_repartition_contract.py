"""Rule 8 of the driver contract, for every driver: a MIG layout change is complete or did not happen."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from provisioning import messages, registry
from provisioning.check_messages import CheckAnswer, CheckCommand, Repartitioned
from provisioning.driver import Driver
from provisioning.drivers.local import gpus, partitions
from provisioning.drivers.simulated import mig
from provisioning.drivers.simulated.mig_profiles import is_legal, parse
from provisioning.errors import BackendUnavailable, NoCapacity, ProvisioningError, UncleanDevices
from provisioning.gpu.scrub import ScrubResult, ScrubVerdict
from provisioning.node import gpu_tasks
from provisioning.types import (
    AcceleratorRequest,
    AgentSpec,
    AppSpec,
    Capability,
    DeviceGrant,
    DeviceKind,
    MigRepartition,
    MigSlice,
    NodePlacement,
    Placement,
    PoolConfig,
    ResourceRequest,
    WorkspaceRef,
    WorkspaceSpec,
)
from tests.gpu.fake_nvml import FakeLibrary, Process, h100_mig, installed

OLD, NEW = [("1g.10gb", 0), ("3g.40gb", 4)], [("2g.20gb", 0), ("3g.40gb", 4)]


class Killed(BaseException):
    """The worker is killed."""


class Simulated:
    """A simulated pool with one GPU of the layout OLD."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch, _stack: ExitStack) -> None:
        self.patch = monkeypatch
        config: dict[str, Any] = {
            "state": str(tmp / "sim"), "gpus": 1, "mig": "1g.10gb@0, 3g.40gb@4",
        }  # fmt: skip
        self.pool = PoolConfig("contract", "simulated", config)
        self.driver: Driver = registry.driver_for(self.pool)

    def use(self, device: str) -> None:
        node = self.driver.inventory().nodes[0].name
        self.driver.ensure_started(spec(), Placement((NodePlacement(node, (DeviceGrant(device),)),)))

    def make_dirty(self, device: str) -> None:
        whole = self.driver.scrub_device

        def scrub(uuid: str, **limits: Any) -> ScrubResult:
            return whole(uuid, **limits) if uuid != device else result(device, ScrubVerdict.LEAK)

        self.patch.setattr(self.driver, "scrub_device", scrub)

    def kill(self) -> None:
        def dying(*_: object) -> str:
            raise Killed

        # Within its transaction.
        self.patch.setattr(mig, "_uuid", dying)

    def revive(self) -> None:
        self.patch.undo()


class Local:
    """A local pool over a fake library with one GPU of the layout OLD."""

    def __init__(self, tmp: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.patch = monkeypatch
        self.gpu = h100_mig()
        stack.enter_context(installed(FakeLibrary([self.gpu])))
        self.pool = PoolConfig("contract", "local", {"home": str(tmp), "sandbox": "none"})
        self.driver: Driver = registry.driver_for(self.pool)
        self.dirty: set[str] = set()
        monkeypatch.setattr(
            type(self.driver), "scrub_device",
            lambda _, uuid, **__: result(
                uuid, ScrubVerdict.LEAK if uuid in self.dirty else ScrubVerdict.CLEAN
            ),
        )  # fmt: skip

    def use(self, device: str) -> None:
        next(instance for instance in self.gpu.instances if instance.uuid == device).processes = [
            Process(4242)
        ]

    def make_dirty(self, device: str) -> None:
        self.dirty.add(device)

    def kill(self) -> None:
        whole = partitions._apply_layout
        self.whole = whole

        def dying(gpu: Any, *, destroy: Any, create: Any) -> None:
            # Between destruction and creation, neither exists.
            whole(gpu, destroy=destroy, create=())
            raise Killed

        self.patch.setattr(partitions, "_apply_layout", dying)

    def revive(self) -> None:
        self.patch.setattr(partitions, "_apply_layout", self.whole)


def result(device: str, verdict: ScrubVerdict) -> ScrubResult:
    return ScrubResult(device, verdict, f"It is {verdict.value}.", free_mib=9_000)


def spec() -> WorkspaceSpec:
    accelerators = AcceleratorRequest(count=1, mig_profile="1g.10gb")
    return WorkspaceSpec(
        ref=WorkspaceRef(str(uuid.uuid4()), 1),
        name="held", owner="ada", team="analysts", template="test", app=AppSpec(argv=("bash",)),
        resources=ResourceRequest(cpu_milli=100, memory_mib=256, accelerators=accelerators),
        agent=AgentSpec("http://127.0.0.1:9", token="a"), app_token="b",
    )  # fmt: skip


@pytest.fixture(params=[Simulated, Local], ids=["simulated", "local"])
def world(request, tmp_path, monkeypatch) -> Iterator[Any]:
    with ExitStack() as stack:
        yield request.param(tmp_path, monkeypatch, stack)


def layout(world: Any) -> list[tuple[str, int]]:
    """Return the layout in the inventory, by position."""
    (node,) = world.driver.inventory().nodes
    its = [device for device in node.devices if device.kind is DeviceKind.MIG]
    return sorted(((each.mig_profile, each.mig_start) for each in its), key=lambda piece: piece[1])


def uuid_at(world: Any, start: int) -> str:
    (node,) = world.driver.inventory().nodes
    return next(device.uuid for device in node.devices if device.mig_start == start)


def change(world: Any, *pieces: MigSlice) -> MigRepartition:
    (node,) = world.driver.inventory().nodes
    gpu = next(device for device in node.devices if device.kind is DeviceKind.GPU)
    return MigRepartition(gpu.uuid, (uuid_at(world, 0),), pieces or (MigSlice("2g.20gb", 0),))


def test_offer_lists_mig_profiles(world):
    inventory = world.driver.inventory()
    assert {Capability.MIG, Capability.REPARTITION} <= inventory.capabilities
    (gpu, *instances) = inventory.nodes[0].devices
    assert gpu.mig_mode and layout(world) == OLD
    assert {instance.parent_uuid for instance in instances} == {gpu.uuid}
    assert {"1g.10gb", "2g.20gb", "3g.40gb"} <= {profile["name"] for profile in gpu.facts["profiles"]}


def test_layout_change_is_in_the_next_inventory(world):
    large = uuid_at(world, 4)
    (made,) = world.driver.repartition_device(change(world))
    assert layout(world) == NEW
    assert (uuid_at(world, 0), uuid_at(world, 4)) == (made, large)


def test_repeated_repartition_is_success(world):
    repartition = change(world)
    assert world.driver.repartition_device(repartition) == world.driver.repartition_device(repartition)
    assert layout(world) == NEW


def test_recreated_instance_has_another_uuid(world):
    first = change(world)
    world.driver.repartition_device(first)
    (again,) = world.driver.repartition_device(change(world, MigSlice("1g.10gb", 0)))
    assert layout(world) == OLD and again not in first.destroy


def test_used_instances_are_kept(world):
    repartition = change(world)
    world.use(repartition.destroy[0])
    with pytest.raises(NoCapacity, match="in use") as caught:
        world.driver.repartition_device(repartition)
    assert not isinstance(caught.value, UncleanDevices) and caught.value.message.endswith(".")
    assert layout(world) == OLD


def test_missing_device_leaves_the_rest_untouched(world):
    (repartition,) = [MigRepartition(change(world).parent_uuid, ("MIG-none",), (MigSlice("2g.20gb", 2),))]
    with pytest.raises(NoCapacity, match="is missing"):
        world.driver.repartition_device(repartition)
    assert layout(world) == OLD


def test_illegal_layout_is_refused_and_the_old_one_kept(world):
    with pytest.raises(NoCapacity, match="rejected"):
        world.driver.repartition_device(change(world, MigSlice("4g.40gb", 0), MigSlice("3g.40gb", 0)))
    assert layout(world) == OLD


def test_unclean_instance_is_not_destroyed(world):
    repartition = change(world)
    world.make_dirty(repartition.destroy[0])
    with pytest.raises(UncleanDevices) as caught:
        world.driver.repartition_device(repartition)
    assert caught.value.devices == repartition.destroy and layout(world) == OLD


def test_killed_repartition_leaves_the_old_or_new_layout(world):
    repartition = change(world)
    world.kill()
    with pytest.raises(Killed):
        world.driver.repartition_device(repartition)
    world.revive()
    assert layout(world) in (OLD, NEW)
    world.driver.repartition_device(repartition)
    assert layout(world) == NEW


def test_worker_reports_new_or_unclean_instances(world, sent):
    def said(repartition: MigRepartition) -> CheckAnswer:
        command = CheckCommand(
            "repartition",
            "r",
            "l",
            world.pool,
            repartition.parent_uuid,
            "quick",
            2e9,
            60.0,
            change=repartition,
        )
        outcome = gpu_tasks._run_command(world.driver, command, gpu_tasks._ProgressSender(command))
        return CheckAnswer("repartition", "r", "l", repartition.parent_uuid, **outcome)

    repartition = change(world)
    answer = said(repartition)
    assert messages.load(answer.report, Repartitioned).created == (uuid_at(world, 0),)
    dirty = change(world, MigSlice("1g.10gb", 0))
    world.make_dirty(dirty.destroy[0])
    assert messages.load(said(dirty).report, Repartitioned).unclean == dirty.destroy
    rejected = said(MigRepartition(repartition.parent_uuid, ("MIG-none",), (MigSlice("7g.80gb", 0),)))
    assert rejected.failure is not None and rejected.failure.code == "no_capacity"


def test_driver_without_mig_support_refuses():
    with pytest.raises(ProvisioningError, match="cannot change MIG layouts"):
        Driver.repartition_device(
            registry.driver_for(PoolConfig("contract", "local", {})), MigRepartition("GPU-1", (), ())
        )


# --- local driver only ----------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path, monkeypatch) -> Iterator[Local]:
    with ExitStack() as stack:
        yield Local(tmp_path, monkeypatch, stack)


def test_inventory_during_a_change_shows_the_previous_layout(local, monkeypatch):
    seen: list[list[tuple[str, int]]] = []
    repartition = change(local)

    def scrub(_: object, uuid: str, **__: object) -> ScrubResult:
        seen.append(layout(local))
        return result(uuid, ScrubVerdict.CLEAN)

    monkeypatch.setattr(type(local.driver), "scrub_device", scrub)
    local.driver.repartition_device(repartition)
    # Before the change and after it, when the new layout is not proven clean.
    assert seen == [OLD, OLD]
    assert layout(local) == NEW


def test_unfinished_repartition_shows_the_previous_layout(local, monkeypatch):
    repartition = change(local)
    local.kill()
    with pytest.raises(Killed):
        local.driver.repartition_device(repartition)
    monkeypatch.setattr(partitions, "recover", lambda _: False)
    assert layout(local) == OLD


def test_layout_change_waits_for_a_running_inventory(local, monkeypatch):
    repartition = change(local)
    local.driver.repartition_device(repartition)
    monkeypatch.setattr(partitions, "LOCK_WAIT_S", 0.0)
    with partitions.layouts_locked(local.driver.base), pytest.raises(BackendUnavailable):
        local.driver.repartition_device(change(local, MigSlice("1g.10gb", 0)))
    local.driver.repartition_device(change(local, MigSlice("1g.10gb", 0)))
    assert layout(local) == OLD


def test_first_change_during_an_inventory_repeats_it(local, monkeypatch):
    scans = []
    scan = gpus.scan

    def slow() -> gpus.GpuScan:
        scans.append(1)
        if len(scans) == 1:
            with partitions._lock(local.driver.base, "GPU-new"):
                pass
        return scan()

    monkeypatch.setattr(gpus, "scan", slow)
    local.driver.inventory()
    assert len(scans) == 2


# --- simulated driver only ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1g.10gb@7", "1g.10gb", "9g.1gb@0", "3g.40gb@0, 2g.20gb@2", "4g.40gb@4"])
def test_illegal_initial_layout_is_refused(text, tmp_path):
    assert parse(text, 81_559) is None
    with pytest.raises(ProvisioningError, match="mig"):
        registry.driver_for(PoolConfig("sim", "simulated", {"state": str(tmp_path), "mig": text}))


def test_compute_slices_limit_the_layout():
    assert is_legal((MigSlice("3g.40gb", 0), MigSlice("4g.40gb", 0)), 81_559) is False
    assert is_legal(tuple(MigSlice("1g.10gb", start) for start in range(7)), 81_559)


def test_whole_gpu_start_on_a_partitioned_gpu_is_refused(tmp_path):
    driver = registry.driver_for(
        PoolConfig("sim", "simulated", {"state": str(tmp_path), "gpus": 1, "mig": "7g.80gb@0"})
    )
    (node,) = driver.inventory().nodes
    gpu = next(device for device in node.devices if device.mig_mode)
    with pytest.raises(ProvisioningError, match="no device"):
        driver.ensure_started(spec(), Placement((NodePlacement(node.name, (DeviceGrant(gpu.uuid),)),)))
