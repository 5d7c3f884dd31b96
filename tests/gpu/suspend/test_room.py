"""Host memory needed for the contents of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups
from provisioning.gpu.suspend.room import SPARE_BYTES, Shortage, held_bytes, shortage
from provisioning.gpu.suspend.run import GpuSnapshot, GpuUse

GIB = 1 << 30


def snapshot(*users: tuple[int, int | None] | None, used: int = 10 * GIB) -> GpuSnapshot:
    told = None if users == (None,) else users
    return GpuSnapshot({"GPU-a": GpuUse("H100", 80 * GIB, used, told)}, "580", "")  # type: ignore[arg-type]


def test_only_memory_of_own_processes_is_counted() -> None:
    assert held_bytes(snapshot((1, 3 * GIB), (2, 4 * GIB)), [1, 9]) == 3 * GIB


def test_unreported_memory_counts_as_all_memory_in_use() -> None:
    assert held_bytes(snapshot((1, None), (2, 4 * GIB)), [1, 2]) == 10 * GIB


def test_gpu_without_process_list_is_not_known_to_be_free() -> None:
    assert not snapshot(None).is_complete
    assert snapshot((1, GIB)).is_complete


@pytest.mark.parametrize(
    ("free", "short"),
    [
        ({"workspace": 4 * GIB, "node": 90 * GIB}, None),
        ({"workspace": 3 * GIB, "node": 90 * GIB}, Shortage("workspace", 3 * GIB + SPARE_BYTES, 3 * GIB)),
        ({"workspace": 4 * GIB, "node": GIB}, Shortage("node", 3 * GIB + SPARE_BYTES, GIB)),
        ({}, None),
    ],
)
def test_smallest_free_memory_decides(free: dict[str, int], short: Shortage | None) -> None:
    assert shortage(3 * GIB, free) == short


def test_limits_of_parent_control_groups_apply(tmp_path: Path) -> None:
    def group(path: Path, limit: str, usage: int, inactive: int = 0) -> Path:
        path.mkdir(exist_ok=True)
        (path / "memory.max").write_text(f"{limit}\n")
        (path / "memory.current").write_text(f"{usage}\n")
        (path / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")
        return path

    root = group(tmp_path / "root", "max", 0)
    around = group(root / "berth", str(8 * GIB), 7 * GIB, inactive=GIB)
    own = group(around / "ws", str(4 * GIB), GIB)
    assert cgroups.memory_free_bytes((own,), root) == 2 * GIB
    (around / "memory.max").write_text("max\n")
    assert cgroups.memory_free_bytes((own,), root) == 3 * GIB
    (own / "memory.max").write_text("max\n")
    assert cgroups.memory_free_bytes((own,), root) is None
    assert cgroups.memory_free_bytes((root / "gone",), root) is None


def test_cgroup_v1_limits_are_read(tmp_path: Path) -> None:
    own = tmp_path / "ws"
    own.mkdir()
    (own / "memory.limit_in_bytes").write_text(str(4 * GIB))
    (own / "memory.usage_in_bytes").write_text(str(3 * GIB))
    (own / "memory.stat").write_text(f"inactive_file 0\ntotal_inactive_file {GIB}\n")
    assert cgroups.memory_free_bytes((own,), tmp_path) == 2 * GIB
