"""Free capacity and pressure of a machine over the same minutes, measured and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.drivers.local import headroom

NOTHING = {"watched_s": 0}
PRESSURE = """some avg10=99.00 avg60=99.00 avg300={} total=1
full avg10=99.00 avg60=99.00 avg300={} total=1
"""


class Machine:
    """A `/proc` of a machine with four cores, of which `busy` work."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.proc, self.kept = folder / "proc", folder / "kept"
        (self.proc / "pressure").mkdir(parents=True)
        self.kept.mkdir()
        self.now, self.work, self.idle = 1000.0, 5000, 5000
        self.runnable, self.available, self.waited, self.stalled = 3, 8_000_000, "40.00", "0.00"
        monkeypatch.setattr(headroom.time, "clock_gettime", lambda _clock: self.now)
        monkeypatch.setattr(headroom.os, "cpu_count", lambda: 4)

    def write(self) -> None:
        (self.proc / "stat").write_text(
            f"cpu  {self.work} 0 0 {self.idle} 0 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
            f"intr 5\nprocs_running {self.runnable}\nprocs_blocked 0\n"
        )
        (self.proc / "meminfo").write_text(
            f"MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    {self.available} kB\n"
        )
        for name, some, full in (("cpu", self.waited, "77"), ("memory", "88", self.stalled)):
            (self.proc / "pressure" / name).write_text(PRESSURE.format(some, full))

    def look(self):
        self.write()
        return headroom.read_headroom(self.kept, self.proc)

    def go(self, minutes: int, *, busy: float = 4.0):
        for _ in range(minutes):
            found = self.look()
            self.now += 60
            self.work += int(6000 * busy)
            self.idle += int(6000 * (4 - busy))
        return self.look() if minutes else found


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_headroom_covers_the_last_five_minutes(machine):
    assert machine.look() == NOTHING
    machine.now += 1
    assert machine.go(1) == NOTHING
    machine.runnable, machine.available, machine.stalled = 13, 320_000, "25.50"
    # Earlier readings have expired.
    assert machine.go(12, busy=3.98) == {
        "watched_s": 300, "cores": 4, "runnable": 12, "cpu_idle": 0.5, "cpu_waited": 40.0,
        "memory_left": 2.0, "memory_stalled": 25.5,
    }  # fmt: skip


def test_peak_of_available_memory_within_the_window_counts(machine):
    machine.available = 160_000
    machine.go(3)
    machine.available = 8_000_000
    machine.look()
    machine.now += 1
    machine.available = 160_000
    assert machine.go(2)["memory_left"] == 50


def test_waiting_for_the_disk_is_idle(machine):
    machine.go(3, busy=0)
    machine.write()
    stat = machine.proc / "stat"
    stat.write_text(stat.read_text().replace(" 0 0 0 0 0 0\n", " 24000 0 0 0 0 0\n", 1))
    assert headroom.read_headroom(machine.kept, machine.proc)["cpu_idle"] == 100


def test_reboot_resets_headroom(machine):
    assert machine.go(6)["watched_s"] == 300
    machine.now, machine.work, machine.idle = 20.0, 10, 10
    assert machine.look() == NOTHING
    assert machine.go(2) == NOTHING


def test_readings_of_an_earlier_boot_are_ignored(machine):
    """The clock may read the same as before the reboot."""
    machine.go(6)
    machine.work, machine.idle = 50_000, 50_000
    assert machine.look() == NOTHING
    assert machine.go(2) == NOTHING


@pytest.mark.parametrize("file_name", ["stat", "meminfo"])
def test_unreadable_proc_file_gives_no_headroom(machine, file_name):
    machine.go(6)
    machine.write()
    (machine.proc / file_name).write_text("nothing\n")
    assert headroom.read_headroom(machine.kept, machine.proc) == NOTHING


def test_kernel_without_pressure_files_reports_the_other_values(machine):
    machine.go(6)
    for name in ("cpu", "memory"):
        (machine.proc / "pressure" / name).unlink()
    found = headroom.read_headroom(machine.kept, machine.proc)
    assert (found["cpu_waited"], found["memory_stalled"], found["cpu_idle"]) == (None, None, 0)


def test_unwritable_history_gives_no_headroom(machine):
    (machine.kept / headroom.FILE).mkdir()
    assert machine.go(6) == NOTHING
    assert [each.name for each in machine.kept.iterdir()] == [headroom.FILE]


@given(
    st.binary(max_size=300)
    | st.lists(st.lists(st.integers() | st.floats(), max_size=6)).map(repr).map(str.encode)
)
def test_any_stored_history_gives_plausible_or_no_values(tmp_path_factory, kept):
    folder = tmp_path_factory.mktemp("headroom")
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(folder, patch)
        (machine.kept / headroom.FILE).write_bytes(kept)
        found = machine.go(5)
    assert found["watched_s"] >= 240
    assert 0 <= found["cpu_idle"] <= 100 and 0 <= found["memory_left"] <= 100 and found["runnable"] >= 0
