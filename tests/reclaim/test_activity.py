"""Activity signals: recorded and synthetic reports in sequence, and the idle clock they move."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.reclaim.engine.activity import (
    MAX_FILL_S,
    MAX_FILL_SHARE,
    MAX_GAP_S,
    UNMEASURED_GRACE_S,
    WAITING_BYTES_S,
    WAITING_CORES,
    WAITING_S,
    AgentReport,
    IdleClock,
    SignalKind,
    advance_clock,
    signals_of,
)
from portal.reclaim.observing import (
    ActivityRecord,
    AppUsage,
    HeartbeatFigures,
    clock_of,
    next_activity,
    report_of,
)

QUIET = AgentReport(
    at_s=1000.0,
    has_kernels=True,
    has_terminals=True,
    cpu_seconds=50.0,
    kernels=1,
    kernels_busy=0,
    kernels_stamp="2026-11-23T10:00:00Z",
    terminals=1,
    terminals_stamp="2026-11-23T09:00:00Z",
    jobs=0,
    has_traffic=True,
    traffic_bytes=5_000_000,
)
ON_GPU = replace(QUIET, has_gpus=True, gpu_percent=0, gpu_idle_since_s=10.0)


def after(report: AgentReport, by_s: float = 60.0, **changes: object) -> AgentReport:
    """Return the next report of an idle JupyterLab with an open tab that polls lists."""
    later = {
        "at_s": report.at_s + by_s,
        "cpu_seconds": (report.cpu_seconds or 0) + 0.01 * by_s,
        "traffic_bytes": (report.traffic_bytes or 0) + max(int(29_000 * by_s), 0),
    }
    return replace(report, **{**later, **changes})  # type: ignore[arg-type]


def walk(reports: list[AgentReport]) -> IdleClock:
    clock: IdleClock | None = None
    for report in reports:
        clock, _signals = advance_clock(clock, report)
    assert clock is not None
    return clock


def followed(report: AgentReport, changes: list[dict[str, object]]) -> list[AgentReport]:
    """Return the report and those that follow it."""
    reports = [report]
    for change in changes:
        reports.append(after(reports[-1], **change))
    return reports


def idle_after(start: AgentReport, *changes: dict[str, object]) -> float:
    return walk(followed(start, list(changes))).idle_s


def active(start: AgentReport, **changes: object) -> set[str]:
    return {each.kind.value for each in signals_of(after(start, **changes), start) if each.active}


def test_editing_counts_as_active_until_the_last_save():
    reading = replace(QUIET, edited_at="2026-11-23T10:00:00Z")
    assert active(reading) == set()
    assert active(reading, edited_at="2026-11-23T10:02:00Z") == {"edits"}
    assert idle_after(reading, {}, {"edited_at": "2026-11-23T10:02:00Z"}, {}) == 60
    # The list of open documents could not be read once, or a document was closed.
    assert idle_after(reading, {}, {"edited_at": None}, {"edited_at": "2026-11-23T10:00:00Z"}) == 180
    assert idle_after(QUIET, {}, {"edited_at": "2026-11-23T10:00:00Z"}, {}) == 60


def test_monitors_and_open_editors_are_not_activity():
    shown = replace(QUIET, monitors_cpu_seconds=5.0, editor_cpu_seconds=9.0)
    used = {
        "cpu_seconds": 50 + 60 * 0.2,
        "monitors_cpu_seconds": 5 + 60 * 0.1,
        "editor_cpu_seconds": 9 + 60 * 0.08,
    }
    assert active(shown, **used) == set()
    assert active(shown, **{**used, "cpu_seconds": 50 + 60 * 0.24}) == {"cpu"}
    # An extension that computes in VS Code itself.
    assert active(shown, cpu_seconds=50 + 60 * 0.3, editor_cpu_seconds=9 + 60 * 0.25) == {"cpu"}


def test_polling_idle_servers_count_as_waiting():
    serves = replace(QUIET, jobs=1, jobs_cpu_seconds=0.0, jobs_io_bytes=0, jobs_unused_servers=1)
    polls = [
        {"jobs_cpu_seconds": 60 * 0.03 * (1 + n), "jobs_io_bytes": 60 * 5000 * (1 + n)} for n in range(300)
    ]
    assert idle_after(serves, *polls) == pytest.approx(300 * 60 - WAITING_S, abs=61)
    assert idle_after(replace(serves, jobs_unused_servers=0), *polls) == 0
    assert idle_after(replace(serves, jobs=2), *polls) == 0


def test_unused_open_tab_is_idle():
    assert idle_after(QUIET, {}, {}, {}) == 180
    assert idle_after(ON_GPU, {}, {}, {}) == 180


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"kernels_busy": 1}, {"kernels"}),
        ({"kernels_stamp": "2026-11-23T10:01:00Z"}, {"kernels"}),
        ({"terminals_stamp": "2026-11-23T10:01:00Z"}, {"terminals"}),
        ({"jobs": 1}, {"jobs"}),
        # An upload or download of 50 kB/s for a minute.
        ({"traffic_bytes": 5_000_000 + 60 * 29_000 + 60 * 50_000}, {"traffic"}),
        ({"cpu_seconds": 53.0}, {"cpu"}),
        ({"cpu_seconds": 53.0, "gpu_percent": 0}, {"cpu"}),
        ({"gpu_percent": 100}, {"gpu"}),
        ({"gpu_percent": 1}, {"gpu"}),
        # It was used between two observations, as a heartbeat in between shows.
        ({"gpu_idle_since_s": 1030.0}, {"gpu"}),
        ({"gpu_idle_since_s": None}, {"gpu"}),
    ],
)
def test_each_kind_of_work_resets_the_idle_clock(changes, kinds):
    assert active(ON_GPU, **changes) == kinds
    assert idle_after(ON_GPU, {}) == 60
    assert idle_after(ON_GPU, changes) == 0


@pytest.mark.parametrize(
    "missing",
    [
        {"cpu_seconds": None},
        {"jobs": None},
        {"traffic_bytes": None},
        {"kernels": None},
        {"kernels_busy": None},
        {"terminals": None},
    ],
)
def test_incomplete_report_counts_as_missing(missing):
    """Its time counts as idle only once the next report shows no activity."""
    assert idle_after(ON_GPU, missing) == 0
    assert idle_after(ON_GPU, {}, {}, missing) == 120
    measured = {
        name: getattr(ON_GPU, name) for name in missing if name not in ("cpu_seconds", "traffic_bytes")
    }
    if "cpu_seconds" in missing:
        measured["cpu_seconds"] = 52.4
    if "traffic_bytes" in missing:
        measured["traffic_bytes"] = 9_000_000
    assert idle_after(ON_GPU, {}, {}, missing, measured) == 240
    assert idle_after(ON_GPU, {}, {}, missing, {**measured, "kernels_stamp": "2026-11-23T10:03:00Z"}) == 0
    assert idle_after(ON_GPU, {}, {}, {**missing, "gpu_percent": 1}) == 0
    assert idle_after(ON_GPU, {}, {}, *[missing] * int(MAX_FILL_S / 60 + 1)) == 0


@pytest.mark.parametrize("changes", [{"cpu_seconds": 1.0}, {"traffic_bytes": 1}, {"gpu_percent": None}])
def test_unmeasured_gpus_and_reset_counters_count_as_work(changes):
    assert idle_after(ON_GPU, {}, {}, changes) == 0
    assert idle_after(ON_GPU, {}, {}, {**changes, "jobs": None}) == 0


def test_apps_without_kernels_or_gpus_have_no_such_signals():
    shell = replace(QUIET, has_kernels=False, has_terminals=False, has_traffic=False)
    assert {each.kind for each in signals_of(after(shell), shell)} == {SignalKind.CPU, SignalKind.JOBS}
    assert idle_after(shell, {}, {}) == 120


@pytest.mark.parametrize(
    ("app", "seen", "kinds"),
    [
        ("jupyter", HeartbeatFigures(), {"kernels", "terminals"}),
        ("marimo", HeartbeatFigures(), {"kernels", "terminals"}),
        ("code-server", HeartbeatFigures(), {"terminals"}),
        ("", HeartbeatFigures(), set()),
        ("code-server", HeartbeatFigures(traffic_bytes=5), {"terminals", "traffic"}),
        ("code-server", HeartbeatFigures(traffic_bytes=None), {"terminals", "traffic"}),
        (
            "",
            HeartbeatFigures(terminals=AppUsage(count=1, last_activity="2026-11-23T10:00:00Z")),
            {"terminals"},
        ),
    ],
)
def test_each_app_has_the_signals_of_its_agent(app, seen, kinds):
    """A missing signal counts as work, for example in the report of an older agent."""
    now = datetime(2026, 11, 23, tzinfo=UTC)
    report = report_of(False, app, now, seen, None)
    found = signals_of(report, report)
    assert {each.kind.value for each in found} - {"cpu", "jobs"} == kinds
    assert all(each.active for each in found if each.value is None)


def test_background_thread_or_task_of_a_finished_cell_is_work():
    kernel = replace(QUIET, kernels_cpu_seconds=1.0, kernels_io_bytes=5_000)
    assert active(kernel) == set()
    assert active(kernel, kernels_cpu_seconds=1.05) == set()
    assert active(kernel, kernels_cpu_seconds=1.3) == active(kernel, kernels_io_bytes=15_000) == {"kernels"}
    # A restarted process has used less, and its start time has changed.
    assert active(kernel, kernels_cpu_seconds=0.5) == active(kernel, kernels_io_bytes=None) == set()
    assert active(kernel, kernels_cpu_seconds=1.3, kernels_io_bytes=None) == {"kernels"}
    assert active(kernel, kernels=0, kernels_cpu_seconds=1.3) == set()


def test_running_marimo_cell_is_work_and_idle_notebook_is_not():
    notebook = replace(QUIET, kernels_stamp=None)
    assert idle_after(notebook, {}, {"kernels_busy": 1}) == 0
    assert idle_after(notebook, {"kernels_busy": 1}, {"kernels_busy": 0}, {}) == 120


@pytest.mark.parametrize(
    "missing",
    [{"kernels": None}, {"terminals": None}, {"jobs": None}, {"traffic_bytes": None}],
)
def test_signal_never_reported_counts_as_active_for_a_limited_time(missing):
    minutes = int(UNMEASURED_GRACE_S / 60)
    assert idle_after(QUIET, *[missing] * minutes) == 0
    assert idle_after(QUIET, *[missing] * (minutes + 1)) == 60
    measured = {name: getattr(QUIET, name) for name in missing}
    assert idle_after(QUIET, *[missing] * minutes, measured, measured, *[missing] * minutes) == 0


@pytest.mark.parametrize(
    "missing",
    [
        {"kernels": None, "cpu_seconds": None},
        {"kernels": None, "gpu_percent": None},
        {"gpu_percent": None},
        {"jobs": None, "kernels_busy": 1},
    ],
)
def test_missing_signals_are_not_assumed_idle_without_cpu_and_gpus(missing):
    assert idle_after(ON_GPU, *[missing] * 40) == 0


def test_stored_clock_equals_the_continuous_one():
    """The row has the whole clock: filled gaps, waiting and unmeasured times."""
    changes = [{}] * 20 + [{"by_s": 300.0}, {"jobs": 1}] + [{"jobs": 1, "kernels": None}] * 35
    row, clock = None, None
    for report in followed(WAITS, changes):
        clock, _signals = advance_clock(clock, report)
        record = None
        if row is not None:
            record = ActivityRecord(row.generation, row.idle_s, row.gpu_idle_s, row.active, row.report)
        row = next_activity(UUID(int=1), 1, record, report) or row
        assert row is not None
        assert clock_of(ActivityRecord(1, row.idle_s, row.gpu_idle_s, row.active, row.report)) == clock


def test_repeated_report_adds_no_time():
    clock = walk([QUIET, after(QUIET)])
    assert advance_clock(clock, clock.last) == (clock, ())


def test_gap_in_observation_resets_the_idle_clock():
    assert idle_after(QUIET, {}, {"by_s": MAX_GAP_S}) == 60 + MAX_GAP_S
    assert idle_after(QUIET, {}, {"by_s": MAX_GAP_S + 1}) == 0
    assert idle_after(QUIET, {}, {"by_s": -5.0}) == 0


HOUR = [{}] * 60


def test_gap_between_idle_reports_is_idle():
    assert idle_after(ON_GPU, *HOUR, {"by_s": 300.0}) == 3900
    assert idle_after(ON_GPU, *HOUR, {"by_s": 300.0}, {}) == 3960


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels_busy": 1},
        {"kernels_stamp": "2026-11-23T10:01:00Z"},
        {"terminals_stamp": "2026-11-23T10:01:00Z"},
        {"jobs": 1},
        {"gpu_percent": 1},
        {"gpu_percent": None},
        # A process computed for 20 s in the gap.
        {"cpu_seconds": 50.0 + 36 + 20},
        {"traffic_bytes": 2**40},
    ],
)
def test_gap_with_work_in_or_after_it_is_work(changes):
    assert idle_after(ON_GPU, *HOUR, {"by_s": 300.0, **changes}, {}) <= 60


def test_gap_after_work_is_work():
    assert idle_after(ON_GPU, *HOUR, {"jobs": 1}, {"by_s": 300.0, "jobs": 0}) == 0


def test_filled_gaps_are_limited_in_length_and_share():
    assert idle_after(ON_GPU, *HOUR, {"by_s": MAX_FILL_S}) == 3600 + MAX_FILL_S
    assert idle_after(ON_GPU, *HOUR, {"by_s": MAX_FILL_S + 1}) == 0
    assert idle_after(ON_GPU, *[{}] * 19, {"by_s": 300.0}) == 0
    assert idle_after(ON_GPU, *[{}] * 20, {"by_s": 300.0}) == 1500
    assert idle_after(ON_GPU, *[{}] * 20, {"by_s": 300.0}, {"by_s": 300.0}) == 0
    assert idle_after(ON_GPU, *HOUR, *[{"by_s": 300.0}, *[{}] * 20] * 10) == 3600 + 10 * 1500
    # After work, the share of filled gaps is counted from zero.
    assert (
        idle_after(ON_GPU, *[{}] * 20, {"by_s": 300.0}, {"jobs": 1}, {"jobs": 0}, *[{}] * 19, {"by_s": 300.0})
        == 1500
    )


def test_gap_during_other_work_is_idle_for_gpus():
    clock = walk(followed(ON_GPU, [*[{"jobs": 1}] * 60, {"by_s": 300.0, "jobs": 1}]))
    assert (clock.idle_s, clock.gpu_idle_s) == (0, 3900)


def test_cpu_work_is_idle_for_gpus():
    clock = walk([ON_GPU, after(ON_GPU, jobs=1)])
    assert (clock.idle_s, clock.gpu_idle_s) == (0, 60)


WAITS = replace(ON_GPU, jobs=1, jobs_cpu_seconds=3.0, jobs_io_bytes=10_000)
WAITING_MINUTES = int(WAITING_S / 60)


def test_long_waiting_command_is_not_work():
    assert idle_after(WAITS, *[{}] * (WAITING_MINUTES - 1)) == 0
    assert idle_after(WAITS, *[{}] * (WAITING_MINUTES + 1)) == 120


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": 2},
        {"jobs_cpu_seconds": 3.0 + 61 * WAITING_CORES},
        {"jobs_io_bytes": 10_000 + 60 * int(WAITING_BYTES_S)},
        {"jobs_cpu_seconds": 2.0},
        {"gpu_percent": 1},
        {"terminals_stamp": "2026-11-23T10:01:00Z"},
        {"kernels_stamp": "2026-11-23T10:01:00Z"},
        {"by_s": MAX_FILL_S + 1},
    ],
)
def test_activity_of_a_command_restarts_its_waiting_time(changes):
    waits = [{}] * (WAITING_MINUTES + 5)
    assert idle_after(WAITS, *waits) == 360
    assert idle_after(WAITS, *waits, changes) == 0
    # Waiting on does not make it idle soon afterwards.
    reports = followed(WAITS, [*waits, changes])
    reports += followed(reports[-1], [{"gpu_percent": 0, "gpu_idle_since_s": reports[-1].at_s}] * 30)[1:]
    assert walk(reports).idle_s == 0


def test_short_commands_between_reports_are_work():
    shell = replace(WAITS, jobs=0)
    assert active(shell) == set()
    assert active(shell, jobs_cpu_seconds=4.0) == active(shell, jobs_io_bytes=20_000) == {"jobs"}


@pytest.mark.parametrize("name", ["jobs_cpu_seconds", "jobs_io_bytes"])
def test_command_without_measured_usage_is_work(name):
    unmeasured = replace(WAITS, **{name: None})
    assert idle_after(unmeasured, *[{}] * 2 * WAITING_MINUTES) == 0


def test_incomplete_report_or_gap_does_not_reset_the_waiting_time():
    half = [{}] * (WAITING_MINUTES // 2)
    for between in ([{"kernels": None}, {"kernels": 1}], [{"by_s": 300.0}]):
        assert idle_after(WAITS, *half, *between, *half) > 0


changed = st.fixed_dictionaries(
    {"by_s": st.floats(min_value=-1000, max_value=1000, allow_nan=False)},
    optional={
        "jobs": st.none() | st.integers(0, 3),
        "traffic_bytes": st.none() | st.integers(0, 2**62),
        "gpu_percent": st.none() | st.integers(0, 100),
        "kernels_busy": st.none() | st.integers(0, 2),
        "kernels_stamp": st.sampled_from(["a", "b", None]),
        "cpu_seconds": st.none() | st.floats(min_value=0, max_value=1e6),
        "gpu_idle_since_s": st.none() | st.floats(min_value=0, max_value=5000),
    },
)


@given(st.lists(changed, max_size=30))
def test_idle_time_is_bounded_by_the_time_since_activity_and_mostly_observed(changes):
    report = ON_GPU
    clock, _signals = advance_clock(None, report)
    observed_s = total_s = 0.0
    for change in changes:
        report = after(report, **change)
        before, over_s = clock, report.at_s - clock.last.at_s
        clock, found = advance_clock(clock, report)
        if clock is before:
            assert over_s <= MAX_FILL_S
            continue
        if over_s < 0 or any(each.active for each in found):
            observed_s = total_s = 0.0
            assert clock.idle_s == 0
        else:
            total_s += over_s
            observed_s += over_s if over_s <= MAX_GAP_S else 0.0
        if clock.idle_s == 0:
            observed_s = total_s = 0.0
        assert clock.idle_s == pytest.approx(total_s)
        assert observed_s >= (1 - MAX_FILL_SHARE) * total_s - 1e-6
        assert clock.gpu_idle_s >= clock.idle_s
