"""Rings and rollups of samples: exact sums, and missing values stay missing."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning import messages
from provisioning.gpu import rollup
from provisioning.gpu.dcgm_names import help_texts, readings
from provisioning.gpu.ring import Ring
from provisioning.gpu.rollup import ProcessTally, Rollup, bin_of, merge, minute, top_of
from provisioning.gpu.samples import METRICS, ProcessUse, Sample, throttle_names
from provisioning.types import DeviceInfo, DeviceKind
from tests.suite.choice import examples

HOUR = 1_800_000_000 // 3600 * 3600


def rolled(samples: list[Sample], start_s: int, span_s: int = 60, **more) -> Rollup:
    ring = Ring(max(1, len(samples)))
    for sample in samples:
        ring.append(sample)
    window = ring.between(start_s, start_s + span_s)
    return minute(window, uuid="GPU-1", start_s=start_s, span_s=span_s, **more)


def test_ring_keeps_the_newest_samples_and_does_not_grow():
    ring = Ring(3)
    size = ring.nbytes
    for second in range(10):
        ring.append(Sample(second, gpu_util_pct=second, power_mw=None))
    window = ring.between(0, 100)
    assert window.at_s.tolist() == [7, 8, 9] and len(ring) == 3 and ring.nbytes == size
    assert window.values[:, METRICS.index("gpu_util_pct")].tolist() == [7, 8, 9]
    assert np.isnan(window.values[:, METRICS.index("power_mw")]).all()
    assert ring.between(8, 9).at_s.tolist() == [8] and len(ring.between(0, 7)) == 0
    assert Ring().nbytes < 150_000


def test_missing_samples_are_counted_and_never_zero():
    samples = [Sample(HOUR + second, gpu_util_pct=50, throttle=4) for second in range(0, 60, 2)]
    samples[3] = Sample(HOUR + 6, power_mw=100_000)
    found = rolled(samples, HOUR)
    assert (found.n, found.missing_s, found.missing_of("gpu_util_pct")) == (30, 30, 31)
    assert found.figures("gpu_util_pct") == (50.0, 50, 50)
    assert found.figures("temperature_c") is None and "temperature_c" not in found.metrics
    assert (found.throttle, found.throttle_n) == ({"sw_power_cap": 29}, 29)
    empty = rolled([], HOUR)
    assert (empty.n, empty.missing_s, dict(empty.metrics)) == (0, 60, {})


def test_mean_maximum_and_percentile_of_known_values():
    samples = [Sample(HOUR + second, gpu_util_pct=second, power_mw=second * 1000) for second in range(60)]
    found = rolled(samples, HOUR)
    assert found.figures("gpu_util_pct") == (29.5, 59, 56)  # 57 of 60 values are 56 or less
    mean, most, p95 = found.figures("power_mw") or (0, 0, 0)
    assert (mean, most) == (29_500, 59_000) and 56_000 <= p95 < 66_000


def test_later_of_two_samples_in_one_second_counts():
    samples = [
        Sample(HOUR + 1.9, gpu_util_pct=10),
        Sample(HOUR + 1.2, gpu_util_pct=90),
        Sample(HOUR + 5.5, gpu_util_pct=20),
        Sample(HOUR + 5.5, gpu_util_pct=30),
    ]
    found = rolled(samples, HOUR)
    assert found.n == 2 and found.metrics["gpu_util_pct"].sum == 10 + 30


def test_only_samples_within_the_span_count_and_zero_throttle_is_valid():
    ring = Ring(4)
    for second in (-1, 0, 59, 60):
        ring.append(Sample(HOUR + second, gpu_util_pct=second + 1, throttle=0))
    found = minute(ring.between(0, 2 * HOUR), uuid="GPU-1", start_s=HOUR)
    assert (found.n, found.metrics["gpu_util_pct"].sum) == (2, 1 + 60)
    assert (found.throttle, found.throttle_n) == ({}, 2)


def test_wider_interval_has_no_missing_time():
    found = rolled(
        [Sample(HOUR + second, gpu_util_pct=1, throttle=1) for second in range(0, 60, 5)], HOUR, interval_s=5
    )
    assert (found.n, found.missing_s, found.throttle) == (12, 0, {"idle": 60})


values = st.fixed_dictionaries(
    {
        name: st.none() | st.integers(0, 100 if name.endswith("_pct") else 40_000_000)
        for name in ("gpu_util_pct", "memory_used_mib", "power_mw", "temperature_c", "nvlink_tx_kib_s")
    }
)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3599), values, st.none() | st.integers(0, 511)), max_size=80))
def test_merged_minutes_equal_the_hour(seen):
    samples = [
        Sample(HOUR + second, **dict(numbers), throttle=mask)
        for second, numbers, mask in {row[0]: row for row in seen}.values()
    ]
    whole = rolled(samples, HOUR, 3600)
    minutes = [rolled(samples, HOUR + 60 * number) for number in range(60)]
    random.Random(len(seen)).shuffle(minutes)
    assert merge(minutes, start_s=HOUR) == whole
    halves = [merge(minutes_of, start_s=start, span_s=1800) for start in (HOUR, HOUR + 1800)
              if (minutes_of := [m for m in minutes if start <= m.start_s < start + 1800])]  # fmt: skip
    assert merge(halves, start_s=HOUR) == whole
    if samples:
        some = [part for part in minutes if part.n]
        assert merge(some, start_s=HOUR) == whole  # minutes that never came are missing all the same


def test_mismatched_rollups_are_not_merged():
    one = rolled([Sample(HOUR, gpu_util_pct=1)], HOUR)
    other = messages.load({**messages.dump(one), "uuid": "GPU-2", "start_s": HOUR + 60}, Rollup)
    for parts in ([], [one, one], [one, other], [rolled([], HOUR + 3600)], [rolled([], HOUR - 60)]):
        with pytest.raises(ValueError):
            merge(parts, start_s=HOUR)


@given(st.sampled_from(METRICS), st.integers(0, 2**40))
def test_each_value_is_in_its_bin(name, value):
    number = bin_of(name, value)
    assert value <= top_of(name, number) and bin_of(name, top_of(name, number)) == number
    if number:
        assert top_of(name, number - 1) < value or bin_of(name, top_of(name, number - 1)) != number - 1
    assert top_of(name, number) <= max(value * 5 // 4 + 1, value + 10_000)


def test_process_use_per_minute():
    tally = ProcessTally()
    for second in range(30):
        tally.add((ProcessUse(7, 50 + second % 2, 100 + second), ProcessUse(8, None, None)))
    tally.add(None)
    tally.add([ProcessUse(pid, 0, pid) for pid in range(100, 130)])
    first, *rest = tally.shares(1)
    assert (first.pid, first.seconds, first.sm_pct, first.memory_mib) == (7, 30, 50, 129)
    assert len(rest) == rollup.MAX_PROCESSES - 1 and rest[0].pid == 129


def test_rollup_round_trips_as_small_json():
    noise = random.Random(1)
    samples = [
        Sample(
            HOUR + second,
            **{name: noise.randrange(90 if name.endswith("_pct") else 500_000) for name in METRICS},
            throttle=4,
        )
        for second in range(60)
    ]
    found = rolled(samples, HOUR)
    text = json.dumps(messages.dump(found))
    assert messages.load(json.loads(text), Rollup) == found
    assert len(text) < 8_000  # every metric jumping about, which no device does
    steady = [Sample(HOUR + second, **dict.fromkeys(METRICS, 50), throttle=1) for second in range(60)]
    assert len(json.dumps(messages.dump(rolled(steady, HOUR)))) < 1_200
    with pytest.raises(ValueError):
        messages.load({**json.loads(text), "n": "many"}, Rollup)


def test_gauges_have_the_names_and_units_of_the_exporter():
    device = DeviceInfo("GPU-1", 3, "NVIDIA H200", 1000, facts={"pci_bus_id": "0000:1b:00.0"})
    sample = Sample(0, gpu_util_pct=97, memory_used_mib=600, power_mw=701_500, pcie_tx_kib_s=2, throttle=4)
    found = {name: (labels, value) for name, labels, value in readings(sample, device, hostname="node-a")}
    assert {name: value for name, (_, value) in found.items()} == {
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_FB_USED": 600,
        "DCGM_FI_DEV_FB_FREE": 400,
        "DCGM_FI_DEV_POWER_USAGE": 701.5,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 2048,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4,
    }
    assert found["DCGM_FI_DEV_GPU_UTIL"][0] == {
        "gpu": "3", "UUID": "GPU-1", "device": "nvidia3", "modelName": "NVIDIA H200",
        "pci_bus_id": "00000000:1B:00.0", "Hostname": "node-a",
    }  # fmt: skip
    assert set(found) <= set(help_texts()) and readings(Sample(0), device) == []
    part = DeviceInfo(
        "MIG-1", 3, "m", 10, DeviceKind.MIG, "GPU-1", mig_profile="1g.18gb", facts={"gpu_instance": 7}
    )
    ((_, labels, _), _) = readings(Sample(0, memory_used_mib=1), part)
    assert (labels["UUID"], labels["GPU_I_PROFILE"], labels["GPU_I_UUID"]) == ("GPU-1", "1g.18gb", "MIG-1")
    assert labels["GPU_I_ID"] == "7" and "GPU_I_ID" not in found["DCGM_FI_DEV_GPU_UTIL"][0]
    assert throttle_names(0x44) == ("sw_power_cap", "hw_thermal")
