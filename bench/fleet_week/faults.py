"""Faults, their rates and symptoms. Every number has its source, or is marked as an assumption.

Meta's training of Llama 3 405B saw these unexpected interruptions on 16,384 H100 in 54 days ("The Llama 3
Herd of Models", arXiv:2407.21783, table 5): faulty GPU 148, HBM3 memory 72, SRAM 19, GPU system processor 17,
silent data corruption 6, thermal interface and sensor 6. "Faulty GPU" includes NVLink and is not divided
further there; equal parts for its classes here are an ASSUMPTION.

Meta finds about one device in a thousand that corrupts silently ("How Meta keeps its AI hardware reliable",
engineering.fb.com, 2025-07-22): the same share has the fault when the week begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LLAMA_GPU_HOURS = 16_384 * 54 * 24
SILENT_DEVICES = 1 / 1000

# ASSUMPTIONS, for which no published figure was found.
PARTS_OF_FAULTY_GPU = 5
STRAGGLERS_AS_THERMAL = 6
XID_TOLD = 0.95
"""Fraction of XIDs that a watcher sees. Others happen while it restarts, or are not logged."""
APPLICATION_XIDS_PER_GPU_HOUR = 1 / 100
"""XIDs 13, 31 and 43 of faulty programs, on GPUs at work."""
FIGURE_SIGMA = 0.015
"""Deviation between two measurements of one device, and between two devices of a model."""
CROWDED = 0.01
CROWDED_FACTOR = 0.7
"""Fraction of first measurements that a neighbour disturbs, and the fraction of the value that they reach."""
CORRECTED_STORM = 0.002
"""Fraction of checks during which a healthy device corrects more ECC errors than usual."""
SLOW_FROM, SLOW_TO = 0.6, 0.92
"""Fraction of its speed under load that a straggler reaches."""
WRONG_LOG10 = (-6.0, -1.0)
"""Range of exponents: on a broken multiprocessor, one of 10 to this power tiles of products is wrong."""
TILES = {"quick": 200, "standard": 20_000, "extended": 200_000}
"""Tiles of products per multiprocessor in a check."""


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A class of faults with its number of `events` in Llama 3's 54 days.

    `xids` are reported when it begins, each with the probability `XID_TOLD`. `snapshot` has NVML's values of
    the device from then on. With `crashes`, workspaces on the device end with an error.
    """

    name: str
    events: float
    xids: tuple[int, ...] = ()
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    at_start: float = 0.0
    crashes: bool = False
    vanishes: bool = False
    hangs: bool = False
    links_down: int = 0
    link_width: int = 16
    throttle: int = 0
    wrong: bool = False
    slow: bool = False
    only_under_load: bool = False
    """The fault shows only after some seconds at full power, so never in a quick check."""

    @property
    def hard(self) -> bool:
        """Whether the driver reports the fault."""
        return bool(self.xids)

    @property
    def per_gpu_hour(self) -> float:
        return self.events / LLAMA_GPU_HOURS


_PART = 148 / PARTS_OF_FAULTY_GPU
CLASSES = (
    FaultClass("off the bus", _PART, (79,), crashes=True, vanishes=True),
    FaultClass("NVLink down", _PART, (74,), links_down=2, crashes=True),
    FaultClass("engine halt", _PART, (62,), hangs=True, crashes=True),
    FaultClass("row remapping failed", _PART, (64,), {"remap_failure": True}, crashes=True),
    FaultClass("PCIe at half its width", _PART, link_width=8),
    FaultClass(
        "HBM, uncorrectable", 72, (48, 63), {"ecc_uncorrected": 1, "remap_pending": True}, crashes=True
    ),
    FaultClass(
        "SRAM, uncorrectable", 19, (95,), {"ecc_uncorrected": 1, "recovery_action": "drain_and_reset"},
        crashes=True,
    ),
    FaultClass("GSP does not answer", 17, (119,), hangs=True, crashes=True),
    FaultClass("silent, at any load", 3, at_start=SILENT_DEVICES / 2, wrong=True),
    FaultClass("silent, under load", 3, at_start=SILENT_DEVICES / 2, wrong=True, only_under_load=True),
    FaultClass("heat", 6, throttle=0x40, only_under_load=True),
    FaultClass("straggler", STRAGGLERS_AS_THERMAL, slow=True, only_under_load=True),
)  # fmt: skip
"""That half of the silent faults show at any load, and the others only under full load, is an ASSUMPTION."""
APPLICATION_XIDS = (13, 31, 43)
