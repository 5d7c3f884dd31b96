"""Minutes sent by nodes: stored once, validated, rolled up and deleted."""

from __future__ import annotations

import copy
import random
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st

from portal.celery import app as control_app
from portal.embedded.clock import SCHEDULE
from portal.fleet.inventory import samples
from portal.fleet.inventory.models import Device, DeviceHour, DeviceMinute, DeviceSeries
from provisioning import messages
from provisioning.gpu.ring import Ring
from provisioning.gpu.rollup import Rollup, merge, minute
from provisioning.gpu.samples import Sample
from tests.factories import local_pool_with, node_info
from tests.inventory.sampled import NOON, apply, rollup
from tests.senders import sent_by
from tests.suite.choice import examples

pytestmark = pytest.mark.django_db
UUID = "GPU-node-1-0"
FULL = {
    "gpu_util_pct": 40,
    "memory_used_mib": 2000,
    "power_mw": 300_000,
    "temperature_c": 60,
    "sm_clock_mhz": 1500,
    "pcie_tx_kib_s": 10,
    "pcie_rx_kib_s": 20,
    "throttle": 0,
}


@pytest.fixture(autouse=True)
def gpu_pool(catalog):
    return local_pool_with(node_info(gpus=2))


def only() -> DeviceMinute:
    return DeviceMinute.objects.get()


# --- storing --------------------------------------------------------------------------------------


def test_minute_is_stored_with_all_values():
    seconds = {second: dict(FULL) for second in range(60)}
    seconds[7].update(gpu_util_pct=100, memory_used_mib=8000, power_mw=600_000, temperature_c=70)
    for second in range(10):
        seconds[second]["throttle"] = 0x20 | (0x40 if second < 4 else 0)  # thermal, for two reasons at once
    seconds[50]["throttle"] = 0x04
    seconds[51]["throttle"] = 0x01 | 0x02  # idle and set clocks are no throttling
    assert apply(rollup(UUID, NOON, seconds)) == samples.RollupCounts(written=1)
    row = only()
    assert row.series.device.uuid == UUID and row.start_s == NOON
    assert {name: getattr(row, name) for name in samples.COLUMNS} == {
        "measured_s": 60,
        "gpu_pct_s": 59 * 40 + 100,
        "gpu_s": 60,
        "gpu_used_s": 60,
        "gpu_max_pct": 100,
        "gpu_p95_pct": 40,
        "memory_mib": 2100,
        "memory_max_mib": 8000,
        "power_mw": 305_000,
        "power_max_mw": 600_000,
        "temperature_c": 60,
        "temperature_max_c": 70,
        "sm_clock_mhz": 1500,
        "pcie_tx_kib_s": 10,
        "pcie_rx_kib_s": 20,
        "throttle_s": 60,
        "thermal_s": 10,
        "power_s": 1,
        "slowed_s": 0,
    }


def test_unmeasured_values_are_null():
    apply(rollup(UUID, NOON, {3: {"temperature_c": 50}}))
    row = only()
    assert (row.measured_s, row.temperature_c) == (1, 50)
    others = set(samples.COLUMNS) - {"measured_s", "temperature_c", "temperature_max_c"}
    assert {getattr(row, name) for name in others} == {None} and row.gpu_bins is None


def test_more_complete_of_two_minutes_is_kept():
    half, whole = rollup(UUID, NOON, [10] * 30), rollup(UUID, NOON, [20] * 60)
    assert apply(half).written == 1
    assert apply(whole).written == 1
    assert (only().measured_s, only().gpu_pct_s) == (60, 1200)
    samples.roll_up_hours()
    assert apply(half, whole) == samples.RollupCounts(known=1)
    assert (only().measured_s, only().gpu_pct_s) == (60, 1200)
    assert DeviceSeries.objects.get().due_s is None, "what says nothing new makes no work"


def test_unknown_devices_are_refused_and_the_rest_stored(caplog):
    mine = rollup(UUID, NOON, [1] * 60)
    assert apply(rollup("GPU-elsewhere", NOON, [1]), mine, rollup("GPU\x00", NOON, [1])).refused == 2
    assert "no such device" in caplog.text and only().series.device.uuid == UUID
    later = rollup(UUID, NOON + 60, [1])
    assert apply(later, node="node-2").refused == 1
    assert apply(later, pool="other").refused == 1
    assert apply(later, node="\x00").refused == 1
    assert apply(later, pool="").written == 1, "a node that does not know its pool"


def changed(**fields) -> dict:
    return {**rollup(UUID, NOON, [10, 0, 30] * 20), **fields}


def with_gpu(**fields) -> dict:
    item = copy.deepcopy(changed())
    item["metrics"]["gpu_util_pct"].update(fields)
    return item


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "text",
        {},
        changed(uuid=7),
        changed(start_s=NOON + 1),
        changed(span_s=3600),
        changed(interval_s=0),
        changed(interval_s=7),
        changed(n=61),
        changed(n=-1),
        changed(throttle_n=61),
        changed(n=10),  # fewer than its metrics have
        with_gpu(max=101),
        with_gpu(p95=31),
        with_gpu(sum=-1),
        with_gpu(sum=60 * 30 + 1),
        with_gpu(n=0, sum=0),
        with_gpu(bins=[[0, 20], [10, 20], [30, 19]]),
        with_gpu(bins=[[0, 20], [10, 20], [101, 20]]),
        with_gpu(bins=[[0, 20], [10, 41], [30, -1]]),
        changed(metrics={"power_mw": {"n": 60, "sum": 1, "max": 2**31, "p95": 1, "bins": []}}),
        changed(metrics={"temperature_c": {"n": 60, "sum": 1, "max": 2**15, "p95": 1, "bins": []}}),
    ],
)
def test_invalid_entries_are_skipped(wrong, caplog):
    good = rollup(UUID, NOON + 60, [1])
    assert apply(wrong, good, now_s=NOON + 121) == samples.RollupCounts(written=1, refused=1)
    assert "ignored sample" in caplog.text and only().start_s == NOON + 60


def test_payload_that_is_no_list_is_refused():
    for wrong in (None, {"a": 1}, "text", [None] * 1025):
        assert samples.apply_samples(pool_slug="", node_name="x", rollups=wrong).refused == 1
    assert samples.apply_samples(pool_slug="", node_name="x", rollups=[]) == samples.RollupCounts()


def test_samples_with_wrong_clocks_are_refused(settings, caplog):
    settings.BERTH_KEEP_MINUTES_DAYS = 1
    item = rollup(UUID, NOON, [1] * 60)
    assert apply(item, now_s=NOON - 61).refused == 1
    assert "clock" in caplog.text
    assert apply(item, now_s=NOON - 60).written == 1, "a clock may be off by a little"
    # Only while all minutes of the hour are kept.
    newest_that_is_too_late = NOON + 86_400 + 0
    assert apply(rollup(UUID, NOON + 60, [1]), now_s=newest_that_is_too_late).refused == 1
    assert apply(rollup(UUID, NOON + 60, [1]), now_s=newest_that_is_too_late - 1).written == 1


def test_silent_minute_is_a_gap():
    assert apply(rollup(UUID, NOON, [])) == samples.RollupCounts(silent=1)
    assert not DeviceMinute.objects.exists() and not DeviceSeries.objects.exists()


def test_tasks_store_and_roll_up_samples():
    tasks = control_app.tasks
    control_app.loader.import_default_modules()
    start_s = int(time.time()) // 60 * 60 - 60
    with sent_by("node.node-1"):
        tasks["control.apply_samples"].run(
            pool_slug="this-machine", node_name="node-1", rollups=[rollup(UUID, start_s, [5] * 60)]
        )
    tasks["control.roll_up_samples"]()
    tasks["control.forget_samples"]()
    assert DeviceHour.objects.get().gpu_pct_s == 300
    known = {entry["task"] for entry in SCHEDULE.values()}
    assert {"control.roll_up_samples", "control.forget_samples"} <= known <= set(tasks)


def test_query_count_is_independent_of_message_length():
    def statements(count: int, start_s: int) -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            apply(*(rollup(UUID, start_s + 60 * number, [1]) for number in range(count)))
        return len(seen)

    statements(1, NOON)
    assert statements(1, NOON + 3600) == statements(20, NOON + 7200) <= 8


# --- idle -----------------------------------------------------------------------------------------


def idle_since() -> int | None:
    return DeviceSeries.objects.get().idle_since_s


def test_idle_time_grows_until_work_or_a_gap():
    for number in range(3):
        apply(rollup(UUID, NOON + 60 * number, [0] * 60))
    assert idle_since() == NOON
    apply(rollup(UUID, NOON + 180, [0] * 59 + [1]))
    assert idle_since() is None
    apply(rollup(UUID, NOON + 240, [0] * 60))
    assert idle_since() == NOON + 240
    apply(rollup(UUID, NOON + 360, [0] * 60))  # a minute is missing: unknown
    assert idle_since() == NOON + 360
    apply(rollup(UUID, NOON + 420, [0] * 55))  # some missing seconds are tolerated
    assert idle_since() == NOON + 360
    apply(rollup(UUID, NOON + 480, [0] * 54))
    assert idle_since() is None


def test_repeated_minute_corrects_idle_time():
    for number in range(3):
        apply(rollup(UUID, NOON + 60 * number, [0] * 58))
    apply(rollup(UUID, NOON + 60, [0] * 59 + [90]))
    assert idle_since() == NOON + 120
    apply(rollup(UUID, NOON + 120, [0] * 59 + [90]))
    assert idle_since() is None


def test_device_without_reported_use_is_not_idle():
    apply(rollup(UUID, NOON, {second: {"power_mw": 1} for second in range(60)}))
    assert idle_since() is None


# --- hours ----------------------------------------------------------------------------------------

second_values = st.fixed_dictionaries(
    {
        "gpu_util_pct": st.none() | st.integers(0, 100),
        "memory_used_mib": st.none() | st.integers(0, 80_000),
        "temperature_c": st.none() | st.integers(0, 110),
    }
)


@settings(max_examples=examples(20))
@given(seen=st.dictionaries(st.integers(0, 3599), second_values, max_size=60), seed=st.integers(0, 9))
def test_hour_from_minutes_equals_hour_from_samples(seen, seed):
    DeviceSeries.objects.all().delete()
    ring = Ring(3600)
    for second, values in sorted(seen.items()):
        ring.append(Sample(NOON + second, **values))
    whole = minute(ring.between(NOON, NOON + 3600), uuid=UUID, start_s=NOON, span_s=3600)
    parts = [
        messages.dump(minute(ring.between(NOON + at, NOON + at + 60), uuid=UUID, start_s=NOON + at))
        for at in range(0, 3600, 60)
    ]
    random.Random(seed).shuffle(parts)
    apply(*parts[:25], now_s=NOON + 3600)
    samples.roll_up_hours()
    apply(*parts[20:], now_s=NOON + 3600)
    samples.roll_up_hours()
    if whole.n == 0:
        assert not DeviceHour.objects.exists()
        return
    hour = DeviceHour.objects.get()
    assert (hour.start_s, hour.measured_s) == (NOON, whole.n)
    gpu = whole.metrics.get("gpu_util_pct")
    if gpu is None:
        assert hour.gpu_s is hour.gpu_pct_s is hour.gpu_p95_pct is hour.gpu_used_s is None
    else:
        idle = dict(gpu.bins).get(0, 0)
        assert (hour.gpu_s, hour.gpu_pct_s, hour.gpu_max_pct, hour.gpu_p95_pct, hour.gpu_used_s) == (
            gpu.n, gpu.sum, gpu.max, gpu.p95, gpu.n - idle,
        )  # fmt: skip
    memory = whole.metrics.get("memory_used_mib")
    assert hour.memory_max_mib == (memory.max if memory else None)
    assert merge([messages.load(part, Rollup) for part in parts], start_s=NOON).n == hour.measured_s


def test_late_minutes_are_rolled_up_again_idempotently():
    apply(rollup(UUID, NOON, [50] * 60), rollup(UUID, NOON + 3600, [10] * 60))
    assert samples.roll_up_hours() == 2
    before = list(DeviceHour.objects.order_by("start_s").values())
    assert samples.roll_up_hours() == 0
    apply(rollup(UUID, NOON + 60, [100] * 60), now_s=NOON + 7200)
    assert samples.roll_up_hours() == 2
    after = list(DeviceHour.objects.order_by("start_s").values())
    assert (after[0]["gpu_pct_s"], after[0]["measured_s"]) == (9000, 120) and after[1] == before[1]


def test_rollup_of_more_devices_than_one_transaction(monkeypatch):
    monkeypatch.setattr(samples, "SERIES_AT_ONCE", 1)
    apply(rollup(UUID, NOON, [1] * 60), rollup("GPU-node-1-1", NOON, [2] * 60))
    assert samples.roll_up_hours() == 2
    assert sorted(DeviceHour.objects.values_list("gpu_pct_s", flat=True)) == [60, 120]
    assert not DeviceSeries.objects.filter(due_s__isnull=False).exists()


def test_means_are_weighted_by_measured_time():
    apply(
        rollup(UUID, NOON, {second: {"temperature_c": 40} for second in range(60)}),
        rollup(UUID, NOON + 60, {second: {"temperature_c": 80} for second in range(30)}),
        rollup(UUID, NOON + 120, {second: {"gpu_util_pct": 1} for second in range(60)}),
    )
    samples.roll_up_hours()
    hour = DeviceHour.objects.get()
    assert (hour.measured_s, hour.temperature_c, hour.gpu_s) == (150, round((40 * 60 + 80 * 30) / 90), 60)


# --- retention ------------------------------------------------------------------------------------


def test_old_samples_are_deleted_in_whole_hours(settings):
    settings.BERTH_KEEP_MINUTES_DAYS, settings.BERTH_KEEP_HOURS_DAYS = 3, 30
    day = 86_400
    now_s = NOON + 1800
    for days, minute_of_hour in ((3, 59), (3, -1), (2, 0), (0, 0)):
        start_s = NOON - days * day + 60 * minute_of_hour
        apply(rollup(UUID, start_s, [1] * 60))
    samples.roll_up_hours()
    series = DeviceSeries.objects.get()
    DeviceHour.objects.create(series=series, start_s=NOON - 31 * day, measured_s=1)
    assert samples.forget_old(now_s=now_s) == 2
    kept = list(DeviceMinute.objects.order_by("start_s").values_list("start_s", flat=True))
    assert kept == [NOON - 3 * day + 59 * 60, NOON - 2 * day, NOON], "an hour goes as a whole"
    assert DeviceHour.objects.count() == 4 and samples.forget_old(now_s=now_s) == 0


def test_minutes_are_kept_until_rolled_up(settings):
    settings.BERTH_KEEP_MINUTES_DAYS = 1
    apply(rollup(UUID, NOON, [1] * 60))
    later = NOON + 10 * 86_400
    assert samples.forget_old(now_s=later) == 0
    samples.roll_up_hours()
    assert samples.forget_old(now_s=later) == 1
    assert DeviceHour.objects.get().measured_s == 60


def test_deleting_a_device_deletes_its_samples():
    apply(rollup(UUID, NOON, [1] * 60))
    samples.roll_up_hours()
    Device.objects.get(uuid=UUID).delete()
    assert not DeviceMinute.objects.exists() and not DeviceHour.objects.exists()
