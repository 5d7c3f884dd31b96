"""Utilisation of a MIG instance, from two readings of NVML's GPM counters (Hopper and later)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pynvml

from provisioning.gpu.nvml.device import Device
from provisioning.gpu.problems import UNAVAILABLE, problem_of


class InstanceMeter:
    """Reads one GPU instance repeatedly. `close` releases the driver's memory."""

    __slots__ = ("_before", "_gpu", "_instance", "_spare")

    @staticmethod
    def is_offered(gpu: Device) -> bool:
        """Return whether an instance's GPU has these counters."""
        try:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice)
        except pynvml.NVMLError:
            return False

    def __init__(self, gpu: Device, instance_id: int) -> None:
        self._gpu = gpu
        self._instance = instance_id
        self._before: Any = None
        self._spare: Any = None

    def busy_pct(self) -> int | None:
        """Return the share of time since the last call with work here, in percent; None on the first call.

        Raises `NvmlProblem` if the driver or the device has a problem.
        """
        try:
            sample, self._spare = self._spare or pynvml.nvmlGpmSampleAlloc(), None
            try:
                pynvml.nvmlGpmMigSampleGet(self._gpu.handle, self._instance, sample)
            except pynvml.NVMLError:
                self._spare = sample
                raise
            before, self._before = self._before, sample
            self._spare = before
            return None if before is None else _activity_between(before, sample)
        except pynvml.NVMLError as error:
            if error.value in UNAVAILABLE:
                return None
            raise problem_of(error) from error

    def close(self) -> None:
        for sample in (self._before, self._spare):
            if sample is not None:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(sample)
        self._before = self._spare = None


def _activity_between(before: Any, after: Any) -> int | None:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = 1
    question.sample1, question.sample2 = before, after
    question.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    pynvml.nvmlGpmMetricsGet(question)
    metric = question.metrics[0]
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not 0.0 <= metric.value <= 100.5:
        return None
    return min(100, round(float(metric.value)))
