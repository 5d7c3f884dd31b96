"""Progress reported by a job: a rate or nothing, with bounded reading cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent_support import APP
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.agent.program import progress
from provisioning.agent.program.progress import ProgressCounters
from tests.suite.choice import examples


class Clock:
    """The wall clock and the monotonic clock of the agent, in seconds."""

    def __init__(self, monkeypatch) -> None:
        self.wall, self.steady = 1_800_000_000.0, 5_000.0
        monkeypatch.setattr(progress.time, "time", lambda: self.wall)
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.steady)

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path


def write(folder: Path, name: str, text: str, at: float) -> None:
    (folder / name).write_text(text)
    os.utime(folder / name, (at, at))


def simulate_job(
    folder: Path, clock: Clock, *, minutes: int, each: float, name: str = "tokens"
) -> ProgressCounters:
    """Simulate a job with `each` steps per second, written once a minute and read four times as often."""
    seen = ProgressCounters(str(folder))
    for minute in range(minutes + 1):
        write(folder, name, f"{minute * 60 * each:.0f}\n", clock.wall)
        for _ in range(4):
            found = seen.rates()
            clock.go(15)
        assert minute >= 5 or found == {}, "too little was told"
    return seen


def test_running_total_gives_a_ten_minute_rate(folder, clock):
    seen = simulate_job(folder, clock, minutes=6, each=50)
    assert seen.rates() == {"tokens": 50}
    for minute in range(1, 12):
        write(folder, "tokens", str(18_000 + minute * 600), clock.wall)
        seen.rates()
        clock.go(60)
    # Earlier samples are dropped.
    assert seen.rates() == {"tokens": 10}


def test_value_no_longer_reported_is_unknown_not_zero(folder, clock):
    seen = simulate_job(folder, clock, minutes=6, each=50)
    clock.go(progress.STALE_S)
    assert seen.rates() == {}


def test_restarted_or_stalled_job_has_no_rate(folder, clock):
    seen = simulate_job(folder, clock, minutes=6, each=50)
    write(folder, "tokens", "10", clock.wall)
    assert seen.rates() == {}
    still = simulate_job(folder, clock, minutes=8, each=0, name="steps")
    assert still.rates() == {}


def test_empty_progress_file_keeps_the_rate(folder, clock):
    seen = simulate_job(folder, clock, minutes=6, each=50)
    before = seen.rates()
    write(folder, "tokens", "", clock.wall)
    assert seen.rates() == before == {"tokens": 50}


@pytest.mark.parametrize("set_by", [-3600, 3600, 5])
def test_clock_change_gives_no_rate(folder, clock, set_by):
    seen = simulate_job(folder, clock, minutes=6, each=50)
    clock.wall += set_by
    for minute in range(5):
        write(folder, "tokens", str(18_060 + minute * 60 * 50), clock.wall)
        assert seen.rates() == {}
        clock.go(60)


def test_future_timestamps_are_ignored(folder, clock):
    seen = ProgressCounters(str(folder))
    for minute in range(10):
        write(folder, "tokens", str(minute * 1000), clock.wall + 3600 + minute)
        assert seen.rates() == {}
        clock.go(60)


@pytest.mark.parametrize(
    "text",
    [
        "", "-5", "1e999", "1e3", "inf", "nan", "0x10", "1,000", "1" * 17, "9999999999999999", "1 2", "a",
        "12\0", "١٢", "+1", "1" + " " * 100, "1.",
    ],
)  # fmt: skip
def test_invalid_numbers_are_not_reported(folder, text):
    write(folder, "tokens", text, 1.0)
    assert ProgressCounters(str(folder)).read() == {}


@pytest.mark.parametrize("text", ["0", "12", " 12.5\n", "1000000000000000"])
def test_valid_numbers_are_reported(folder, text):
    write(folder, "tokens", text, 1.0)
    assert ProgressCounters(str(folder)).read() == {"tokens": (1.0, float(text))}


@pytest.mark.parametrize("name", ["Tokens", "1st", "a" * 31, "a-b", ".hidden", "tökens"])
def test_invalid_file_names_are_ignored(folder, name):
    write(folder, name, "5", 1.0)
    assert ProgressCounters(str(folder)).read() == {}


def test_special_files_are_ignored_without_blocking(folder):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "Number").write_text("7")
    (folder / "link").symlink_to("Number")
    (folder / "endless").symlink_to("/dev/zero")
    (folder / "tokens").write_text("5")
    assert list(ProgressCounters(str(folder)).read()) == ["tokens"]


def test_endless_file_is_read_for_a_few_bytes(folder, monkeypatch):
    with (folder / "tokens").open("wb") as file:
        file.write(b"1")
        file.truncate(1 << 40)
    asked: list[int] = []
    read = os.read
    monkeypatch.setattr(progress.os, "read", lambda fd, count: asked.append(count) or read(fd, count))
    assert ProgressCounters(str(folder)).read() == {}
    assert asked == [progress.MAX_BYTES + 1]


def test_number_of_progress_files_read_is_limited(folder, monkeypatch):
    for number in range(500):
        (folder / f"n{number}").write_text("1")
    opened: list[str] = []
    read_one = progress.read_one
    monkeypatch.setattr(
        progress, "read_one", lambda name, folder: opened.append(name) or read_one(name, folder)
    )
    seen = ProgressCounters(str(folder))
    assert len(seen.read()) == len(opened) == progress.MAX_NAMES
    assert opened == sorted(opened)


@pytest.mark.parametrize("folder_name", ["none", "file"])
def test_missing_folder_reports_nothing(tmp_path, folder_name):
    (tmp_path / "file").write_text("")
    assert ProgressCounters(str(tmp_path / folder_name)).rates() == ProgressCounters("").rates() == {}


def test_frequent_progress_updates_are_stored_in_few_samples(folder, clock):
    seen = ProgressCounters(str(folder))
    for number in range(5000):
        write(folder, "tokens", str(number), clock.wall)
        rates = seen.rates()
        clock.go(0.5)
    assert rates["tokens"] == pytest.approx(2, rel=0.01)
    assert len(seen.totals["tokens"]) <= progress.WINDOW_S / progress.SPACING_S * 2 + 2


looks = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", "e", "f"]),
        st.one_of(st.integers(-10, 10**17).map(str), st.floats().map(str), st.text(max_size=5)),
        st.floats(-1000, 1000),
        st.floats(0, 500),
    ),
    max_size=40,
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(looks)
def test_any_input_gives_few_positive_rates(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("progress")
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        seen = ProgressCounters(str(folder))
        for name, text, off, wait in steps:
            (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
            os.utime(folder / name, (clock.wall + off, clock.wall + off))
            rates = seen.rates()
            assert len(rates) <= len(seen.totals) <= 2 * progress.MAX_NAMES
            assert all(0 < rate <= progress.MAX_DONE for rate in rates.values())
            clock.go(wait)


JOB = """
import os, time
file = os.path.join(os.environ["BERTH_PROGRESS_DIR"], "tokens")
open(file, "w").write("1000")
then = time.time() - 400
os.utime(file, (then, then))
"""


def test_progress_files_are_reported_in_heartbeats(portal, configuration, start, tmp_path):
    """The app finds the folder; heartbeats contain rates of its files."""
    made = tmp_path / "run" / "progress"
    configuration(argv=["python3", "-c", JOB + APP, "{port}", "good", tmp_path.name], progress_dir=str(made))
    start()
    first = portal.next("heartbeat")[1]["activity"]
    assert "progress" not in first
    assert made.stat().st_mode & 0o777 == 0o700
    (made / "tokens").write_text("5000\n")
    while "progress" not in (last := portal.next("heartbeat")[1]["activity"]):
        pass
    assert last["progress"] == {"tokens": pytest.approx(10, rel=0.1)}


def test_agent_runs_without_a_progress_folder_if_creation_fails(portal, configuration, start, tmp_path):
    (tmp_path / "file").write_text("")
    configuration(progress_dir=str(tmp_path / "file" / "progress"))
    start()
    assert "progress" not in portal.next("heartbeat")[1]["activity"]
