"""Devices of this machine as sources for the sampler, through NVML."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import pynvml

from provisioning.gpu.counters import NARROW, Rate, Total
from provisioning.gpu.nvml import ALL_LINKS, Device, InstanceMeter, NoDriver, Nvml, NvmlProblem, session
from provisioning.gpu.samples import ProcessUse, Sample
from provisioning.gpu.watcher import last_xids
from provisioning.gpu.watcher.kernel_log import slot_of

_FIELDS: tuple[int | tuple[int, int], ...] = (
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
)
HEALTH_EVERY_S = 30.0
_KIB = 1024


class GpuSource:
    """A whole GPU."""

    def __init__(self, device: Device, uuid: str) -> None:
        self.uuid = uuid
        self.device = device
        self._rates = [Rate() for _ in range(4)]
        self._totals = {"pcie_replays": Total(NARROW)}
        self._seen_us = 0
        self._health: dict[str, int | None] = {}
        self._health_at_s = float("-inf")
        self._slot = ""

    def read(self, at_s: float) -> Sample:
        """Return a sample of everything the device offers. Raises `NvmlProblem` if it has a problem."""
        device = self.device
        _, used = device.memory()
        utilisation = device.utilisation_pct()
        memory_temperature, *counters, energy_mj = device.fields(_FIELDS)
        self._look_at_health(at_s)
        nvlink_tx, nvlink_rx, sent, received = (
            rate.add_reading(value, at_s) for rate, value in zip(self._rates, counters, strict=True)
        )
        if counters[2] is None and counters[3] is None:
            # Without counters (before Hopper) the driver measures for 20 ms.
            pcie_tx, pcie_rx = device.pcie_kib_s()
        else:
            pcie_tx = None if sent is None else sent // _KIB
            pcie_rx = None if received is None else received // _KIB
        return Sample(
            at_s=at_s,
            gpu_util_pct=utilisation[0] if utilisation else None,
            memory_util_pct=utilisation[1] if utilisation else None,
            memory_used_mib=used >> 20,
            power_mw=device.power_mw(),
            temperature_c=device.temperature_c(),
            # Devices without the sensor return 0 instead of an error.
            memory_temperature_c=memory_temperature or None,
            sm_clock_mhz=device.clock_mhz(pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=device.clock_mhz(pynvml.NVML_CLOCK_MEM),
            pcie_tx_kib_s=pcie_tx,
            pcie_rx_kib_s=pcie_rx,
            nvlink_tx_kib_s=nvlink_tx,
            nvlink_rx_kib_s=nvlink_rx,
            throttle=device.throttle_reasons(),
            processes=self._processes(),
            energy_mj=self._total("energy_mj", energy_mj),
            last_xid=last_xids.last_xid(self._slot) if self._slot else None,
            **self._health,
        )

    def _look_at_health(self, at_s: float) -> None:
        """Read slowly changing counters twice per minute; their errors do not affect the sample."""
        if 0 <= at_s - self._health_at_s < HEALTH_EVERY_S:
            return
        self._health_at_s = at_s
        device = self.device
        try:
            bus = device.pci_bus_id()
            rows = device.remapped_rows()
            counted = {
                "pcie_replays": device.pcie_replays(),
                "ecc_corrected": device.ecc_errors(uncorrected=False, aggregate=False),
                "ecc_uncorrected": device.ecc_errors(uncorrected=True, aggregate=False),
                "remapped_corrected": rows[0] if rows else None,
                "remapped_uncorrected": rows[1] if rows else None,
            }
        except NvmlProblem:
            return
        self._health = {name: self._total(name, value) for name, value in counted.items()}
        self._health["remap_failed"] = int(rows[3]) if rows else None
        self._slot = slot_of(bus) if bus else ""

    def _total(self, name: str, value: int | None) -> int | None:
        return self._totals.setdefault(name, Total()).add_reading(value)

    def _processes(self) -> tuple[ProcessUse, ...] | None:
        present = self.device.processes()
        if present is None:
            return None
        samples = self.device.process_utilisation(self._seen_us)
        shares: dict[int, list[int]] = {}
        for item in samples or ():
            # The driver returns several unordered samples per process; values above 100 are noise.
            if item.smUtil <= 100:
                shares.setdefault(int(item.pid), []).append(int(item.smUtil))
            self._seen_us = max(self._seen_us, int(item.timeStamp))
        return tuple(
            ProcessUse(pid, _mean(shares.get(pid)), None if memory is None else memory >> 20)
            for pid, memory in present
        )


def _mean(values: list[int] | None) -> int | None:
    return sum(values) // len(values) if values else None


class MigSource:
    """A MIG instance with its own values. Power, clocks and temperature belong to its GPU."""

    def __init__(self, device: Device, uuid: str, meter: InstanceMeter | None = None) -> None:
        self.uuid = uuid
        self.device = device
        self.meter = meter

    def read(self, at_s: float) -> Sample:
        """Return memory, processes and, from Hopper on, utilisation. Raises `NvmlProblem`."""
        _, used = self.device.memory()
        present = self.device.processes()
        return Sample(
            at_s=at_s,
            gpu_util_pct=self.meter.busy_pct() if self.meter else None,
            memory_used_mib=used >> 20,
            processes=None
            if present is None
            else tuple(
                ProcessUse(pid, None, None if memory is None else memory >> 20) for pid, memory in present
            ),
        )


class NvmlDevices:
    """Device list for `Sampler`; keeps NVML open between calls, and reopens it after errors."""

    def __init__(self) -> None:
        self._stack: ExitStack | None = None
        self._driver: Nvml | None = None
        self._sources_by_uuid: dict[str, GpuSource | MigSource] = {}
        self._reopen = False
        self._lock = threading.Lock()

    def __call__(self) -> Sequence[GpuSource | MigSource]:
        """Return the sources. Raises `NvmlProblem`; `NoDriver` if there is no driver."""
        with self._lock:
            try:
                return self._current_sources()
            except NvmlProblem:
                self._close()
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        stack, self._stack, self._driver = self._stack, None, None
        _close_meters(self._sources_by_uuid.values())
        self._sources_by_uuid = {}
        if stack is not None:
            stack.close()

    def _current_sources(self) -> list[GpuSource | MigSource]:
        if self._reopen:
            # A recovered device is visible only after reopening the library.
            sources, self._reopen = self._sources_by_uuid, False
            self._close()
            # Meters are bound to the closed library; counters of whole GPUs continue.
            self._sources_by_uuid = {
                uuid: source for uuid, source in sources.items() if isinstance(source, GpuSource)
            }
        if self._driver is None:
            stack = ExitStack()
            self._driver = stack.enter_context(session())
            self._stack = stack
        count = self._driver.count()
        if not count:
            raise NoDriver("The NVIDIA driver lists no GPU.")
        current: dict[str, GpuSource | MigSource] = {}
        broken: NvmlProblem | None = None
        for index in range(count):
            try:
                current |= self._sources(self._driver.device(index))
            except NvmlProblem as problem:
                broken = problem
        if broken is not None and not current:
            raise broken
        self._reopen = broken is not None
        for uuid, source in current.items():
            # Sources keep counters between calls, so keep those of remaining devices.
            previous = self._sources_by_uuid.get(uuid)
            if isinstance(previous, GpuSource) and isinstance(source, GpuSource):
                previous.device = source.device
                current[uuid] = previous
            elif isinstance(previous, MigSource) and isinstance(source, MigSource):
                previous.device = source.device
                # The same UUID means the same instance, so its meter continues.
                current[uuid] = previous
        _close_meters(source for uuid, source in self._sources_by_uuid.items() if uuid not in current)
        self._sources_by_uuid = current
        return list(current.values())

    @staticmethod
    def _sources(device: Device) -> dict[str, GpuSource | MigSource]:
        uuid = device.uuid()
        sources: dict[str, GpuSource | MigSource] = {uuid: GpuSource(device, uuid)}
        mode = device.mig_mode()
        if mode and mode[0]:
            counted = InstanceMeter.is_offered(device)
            for mig in device.mig_devices():
                name, instance = mig.uuid(), mig.gpu_instance_id()
                meter = InstanceMeter(device, instance) if counted and instance is not None else None
                sources[name] = MigSource(mig, name, meter)
        return sources


def _close_meters(sources: Iterable[GpuSource | MigSource]) -> None:
    for source in sources:
        if isinstance(source, MigSource) and source.meter is not None:
            source.meter.close()
