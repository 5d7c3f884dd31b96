"""Changing the MIG layout of a GPU destroys only idle instances; a kill leaves the old or new layout."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from provisioning.drivers.local import partitions
from provisioning.drivers.local.partitions import recover, repartition
from provisioning.errors import BackendUnavailable, NoCapacity, UncleanDevices
from provisioning.gpu.nvml import session
from provisioning.types import MigRepartition, MigSlice
from tests.gpu.fake_nvml import Err, FakeGpu, FakeLibrary, Process, h100_mig, installed, uuid_of

GPU, LARGE, SMALL = uuid_of(0), uuid_of(100, "MIG"), uuid_of(200, "MIG")
OLD = [("3g.40gb", 4), ("1g.10gb", 0)]
NEW = [("3g.40gb", 4), ("2g.20gb", 0)]
CHANGE = MigRepartition(GPU, (SMALL,), (MigSlice("2g.20gb", 0),))


class Killed(BaseException):
    """The worker is killed."""


class Scrubs:
    """Records scrubs; instances in `dirty` are not clean afterwards."""

    def __init__(self, *dirty: str) -> None:
        self.done: list[str] = []
        self.dirty = dirty

    def __call__(self, uuid: str) -> bool:
        self.done.append(uuid)
        return uuid not in self.dirty


class Dying(FakeLibrary):
    """Kills the worker before or after the call with this number."""

    def __init__(self, gpu: FakeGpu, *, at: int, after: bool) -> None:
        super().__init__([gpu])
        self.left = at
        self.after = after
        self.dead = False

    def __getattr__(self, name):
        call = super().__getattr__(name)
        if not name.startswith(("nvmlDeviceCreate", "nvmlGpuInstance", "nvmlComputeInstanceDestroy")):
            return call

        def counted(*args):
            if self.dead:
                return call(*args)
            self.left -= 1
            if self.left == 0 and not self.after:
                self.dead = True
                raise Killed
            result = call(*args)
            if self.left == 0:
                self.dead = True
                raise Killed
            return result

        return counted


def layout(gpu: FakeGpu) -> list[tuple[str, int]]:
    """Return profiles and positions available to tenants."""
    names = {profile.id: profile.name for profile in gpu.profiles}
    return [
        (names[instance.profile_id], instance.start) for instance in gpu.instances if instance.compute_id >= 0
    ]


def journal(base: Path) -> list[str]:
    return [path.name for path in (base / ".mig").glob("*.json")]


def test_idle_instance_is_replaced_by_another(tmp_path):
    gpu, scrubs = h100_mig(), Scrubs()
    with installed(FakeLibrary([gpu])):
        (found,) = repartition(tmp_path, CHANGE, scrubs)
    assert layout(gpu) == NEW
    assert scrubs.done == [SMALL, found] and found == gpu.instances[-1].uuid
    assert journal(tmp_path) == []


def test_free_instances_are_used_before_repartitioning(tmp_path):
    gpu, scrubs = h100_mig(), Scrubs()
    change = MigRepartition(GPU, (), (MigSlice("1g.10gb", 1), MigSlice("2g.20gb", 2)))
    with installed(FakeLibrary([gpu])):
        found = repartition(tmp_path, change, scrubs)
    assert layout(gpu) == [*OLD, ("1g.10gb", 1), ("2g.20gb", 2)]
    assert scrubs.done == list(found)


def test_repeated_command_succeeds_without_changes(tmp_path):
    gpu = h100_mig()
    with installed(FakeLibrary([gpu])):
        first = repartition(tmp_path, CHANGE, Scrubs())
        again = Scrubs()
        assert repartition(tmp_path, CHANGE, again) == first
    assert again.done == list(first)
    assert layout(gpu) == NEW


def test_instance_in_use_is_unchanged(tmp_path):
    gpu, scrubs = h100_mig(), Scrubs()
    gpu.instances[1].processes = [Process(4242)]
    with installed(FakeLibrary([gpu])), pytest.raises(NoCapacity, match="in use"):
        repartition(tmp_path, CHANGE, scrubs)
    assert (layout(gpu), scrubs.done, journal(tmp_path)) == (OLD, [], [])


def test_instance_used_during_the_scrub_is_kept(tmp_path):
    gpu = h100_mig()

    def scrub(uuid: str) -> bool:
        gpu.instances[1].processes = [Process(4242)]
        return True

    with installed(FakeLibrary([gpu])), pytest.raises(NoCapacity, match="in use"):
        repartition(tmp_path, CHANGE, scrub)
    assert (layout(gpu), journal(tmp_path)) == (OLD, [])


def test_missing_instance_does_not_destroy_others(tmp_path):
    gpu = h100_mig()
    change = MigRepartition(GPU, (SMALL, uuid_of(7, "MIG")), CHANGE.create)
    with installed(FakeLibrary([gpu])), pytest.raises(NoCapacity, match="is missing"):
        repartition(tmp_path, change, Scrubs())
    assert layout(gpu) == OLD


def test_failed_scrub_keeps_the_old_layout(tmp_path):
    gpu = h100_mig()
    with installed(FakeLibrary([gpu])), pytest.raises(UncleanDevices):
        repartition(tmp_path, CHANGE, Scrubs(SMALL))
    assert (layout(gpu), journal(tmp_path)) == (OLD, [])


def test_unclean_new_instances_are_not_allocated(tmp_path):
    gpu = h100_mig()
    with installed(FakeLibrary([gpu])), pytest.raises(UncleanDevices):
        repartition(tmp_path, CHANGE, Scrubs(uuid_of(9001, "MIG")))
    assert (layout(gpu), journal(tmp_path)) == (NEW, [])


def test_refused_layout_keeps_the_old_one(tmp_path):
    gpu = h100_mig()
    # Slots 0 and 1 are needed, and only 0 is freed.
    gpu.instances.append(_copy(gpu, start=1))
    with installed(FakeLibrary([gpu])), pytest.raises(NoCapacity, match="rejected"):
        repartition(tmp_path, CHANGE, Scrubs())
    assert sorted(layout(gpu)) == sorted([*OLD, ("1g.10gb", 1)])
    assert journal(tmp_path) == []


def _copy(gpu: FakeGpu, *, start: int):
    small = gpu.instances[1]
    return type(small)(
        uuid_of(300, "MIG"), small.name, small.memory, 8, 0, small.profile_id, start, small.size, small.sms
    )


def test_refused_driver_call_reports_no_layout(tmp_path):
    gpu = h100_mig()
    gpu.broken = Err(pynvml.NVML_ERROR_GPU_IS_LOST)
    with installed(FakeLibrary([gpu])), pytest.raises(BackendUnavailable):
        repartition(tmp_path, CHANGE, Scrubs())


def test_only_one_repartition_at_a_time(tmp_path):
    gpu = h100_mig()

    def scrub(uuid: str) -> bool:
        with pytest.raises(BackendUnavailable, match="Another worker"):
            repartition(tmp_path, CHANGE, Scrubs())
        assert not (tmp_path / ".mig" / f"{GPU}.json").exists() or not recover(tmp_path)
        return True

    with installed(FakeLibrary([gpu])):
        repartition(tmp_path, CHANGE, scrub)
    assert layout(gpu) == NEW


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 60))
def test_killed_at_any_call_leaves_the_old_or_new_layout(tmp_path, at, after):
    gpu = h100_mig()
    library = Dying(gpu, at=at, after=after)
    with installed(library):
        try:
            repartition(tmp_path, CHANGE, Scrubs())
        except Killed:
            # The next worker recovers.
            assert recover(tmp_path)
        library.dead = True
        assert layout(gpu) in (OLD, NEW)
        assert [instance for instance in gpu.instances if instance.compute_id < 0] == []
        assert journal(tmp_path) == []
        # The repeated command is carried out.
        found = repartition(tmp_path, CHANGE, Scrubs())
        assert layout(gpu) == NEW and len(found) == 1


def test_kill_points_cover_the_whole_change(tmp_path):
    """There are fewer calls than numbers above, so the last number kills no process."""
    library = Dying(h100_mig(), at=59, after=True)
    with installed(library):
        repartition(tmp_path, CHANGE, Scrubs())
    assert not library.dead


def test_killed_rollback_is_completed(tmp_path):
    for at in range(1, 60):
        base = tmp_path / str(at)
        gpu = h100_mig(values={})
        gpu.instances.append(_copy(gpu, start=1))
        library = Dying(gpu, at=at, after=True)
        with installed(library):
            try:
                repartition(base, CHANGE, Scrubs())
            except NoCapacity:
                pass
            except Killed:
                assert recover(base)
            assert sorted(layout(gpu)) == sorted([*OLD, ("1g.10gb", 1)])
            assert journal(base) == []


def test_missing_gpu_keeps_its_journal(tmp_path):
    gpu = h100_mig()
    partitions._write(tmp_path, partitions.PartitionJournal(GPU, (MigSlice("1g.10gb", 0),), CHANGE.create))
    with installed(FakeLibrary([])):
        assert not recover(tmp_path)
    assert journal(tmp_path) == [f"{GPU}.json"]
    with installed(FakeLibrary([gpu])):
        assert recover(tmp_path)
    assert (layout(gpu), journal(tmp_path)) == (NEW, [])


def test_recovery_without_journals_succeeds(tmp_path):
    assert recover(tmp_path / "nowhere")


def test_fake_library_is_as_strict_as_the_driver():
    gpu = h100_mig()
    with installed(FakeLibrary([gpu])), session() as driver:
        device = driver.by_uuid(GPU)
        assert [instance.start for instance in device.gpu_instances()] == [0, 4]
        with pytest.raises(Exception, match=r"\w"):
            device.gpu_instances()[0].destroy()
        with pytest.raises(Exception, match=r"\w"):
            device.create_gpu_instance("2g.20gb", 4)
        with pytest.raises(Exception, match="does not fit at slice"):
            device.create_gpu_instance("2g.20gb", 1)
        with pytest.raises(Exception, match="does not support MIG profile"):
            device.create_gpu_instance("5g.50gb", 0)
