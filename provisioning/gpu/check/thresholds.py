"""Thresholds: peaks from datasheets, the fractions that a healthy device reaches, and comparisons.

Units: GB/s (10^9 bytes per second), TFLOP/s and TOP/s (10^12, dense). Every floor is linted on import: one
below 0.3 of the peak could never fail, one above 0.95 could never pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provisioning.gpu.check.types import Facts, Judgement, Status

LOWEST, HIGHEST = 0.3, 0.95


@dataclass(frozen=True, slots=True)
class Peak:
    """Datasheet of a model. `names` are NVML's names without the vendor.

    `bounded`: the power limit keeps it well below its arithmetic peak; `low_power`: far below, at 70 W.
    """

    names: tuple[str, ...]
    sms: int
    memory_gb_s: float
    hbm: bool
    tflops: Mapping[str, float]
    bounded: bool = False
    slices: int = 8
    low_power: bool = False


def _t(
    fp64: float,
    fp32: float,
    half: float,
    tf32: float | None = None,
    fp8: float | None = None,
    *,
    bf16: bool = True,
) -> dict[str, float]:
    """Return peaks by type, without missing types. `half` is FP16, and BF16 if supported."""
    peaks = {
        "fp64": fp64,
        "fp32": fp32,
        "tf32": tf32,
        "fp16": half,
        "bf16": half if bf16 else None,
        "fp8": fp8,
    }
    return {name: peak for name, peak in peaks.items() if peak is not None}


# FP64 uses tensor cores where cuBLAS does. Sources of figures added later:
# A40: https://hmc-tech.com/gpu/nvidia-a100-vs-nvidia-a40
#      https://gpu.spicedreamphone.com/en/gpu/nvidia/a40-pcie
# L40: https://www.mullet.se/product.html?product_id=355414
#      https://hmc-tech.com/gpu/nvidia-l40-vs-nvidia-a40 (FP64)
# RTX 6000 Ada: https://www.grafikkarten.com/de/news/nvidia-rtx-6000-grafikkarte-der-ada-generation
# A10G, memory only: https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/
# RTX 4090: https://waredb.com/processor/nvidia-geforce-rtx-4090
#           https://hmc-tech.com/gpus/nvidia-geforce-rtx-4090-vs-nvidia-rtx-pro-5000-blackwell
# RTX 5090: https://www.spheron.network/blog/nvidia-rtx-5090-specs/
#           https://pocketmags.com/linux-format-magazine/may-2025/articles/nvidia-geforce-rtx-5090 (the lower)
# RTX A6000: https://sysrqmts.com/es/gpus/compare/nvidia-rtx-a6000-vs-nvidia-tesla-p40
#            https://www.botcraftman.ru/de/gpu/a100-pcie-vs-rtx-a6000 (the lower)
# RTX PRO 6000: https://gpu.name/posts/nvidia-unveils-rtx-pro-6000-blackwell-gpu-with-24-064-cores-and-96gb-memory
#               https://www.topcpu.net/es/news/nvidia-launches-96gb-rtx-5090-model-with-a-whopping-price-tag-of-10000
# L20: https://www.topcpu.net/en/gpu-c/a40-pcie-vs-l20, https://technical.city/id/video/RTX-A40-vs-L20
# H20: https://willitrunai.com/es/gpus/h20-96gb, https://zangshuxian.com/new/674733024499207168
# A2: https://hmc-tech.com/gpu/nvidia-gb200-vs-nvidia-a2
#     https://www.nvidia.com/content/dam/en-zz/solutions/data-center/a2/pdf/a2-datasheet.pdf (memory)
# A16, of each of its 4 GPUs: https://hmc-tech.com/gpu/nvidia-a100-sxm-40gb-vs-nvidia-a16
# V100 PCIe: https://sysrqmts.com/gpus/compare/nvidia-a100-pcie-vs-nvidia-tesla-v100-pcie-16-gb
# H200 NVL, memory only: https://www.saulelectric.com/nvidia-h200.html
# B300, memory only: https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html
# No consistent figures were found for H100 NVL, V100S, RTX PRO 6000 Server, GH200 and GB200.
PEAKS: tuple[Peak, ...] = (
    Peak(("T4",), 40, 320, False, _t(0.25, 8.1, 65, bf16=False), bounded=True, low_power=True),
    Peak(
        ("V100-SXM2-16GB", "V100-SXM2-32GB"), 80, 900, True, _t(7.8, 15.7, 125, bf16=False)
    ),
    Peak(("A10",), 72, 600, False, _t(0.49, 31.2, 125, 62.5), bounded=True),
    Peak(("A30",), 56, 933, True, _t(10.3, 10.3, 165, 82), bounded=True, slices=4),
    Peak(("A100-SXM4-40GB", "A100-PCIE-40GB"), 108, 1555, True, _t(19.5, 19.5, 312, 156)),
    Peak(("A100 80GB PCIe",), 108, 1935, True, _t(19.5, 19.5, 312, 156)),
    Peak(("A100-SXM4-80GB",), 108, 2039, True, _t(19.5, 19.5, 312, 156)),
    Peak(("L4",), 58, 300, False, _t(0.47, 30.3, 121, 60, 242), bounded=True, low_power=True),
    Peak(("L40S",), 142, 864, False, _t(1.4, 91.6, 362, 183, 733), bounded=True),
    Peak(("H100 PCIe",), 114, 2039, True, _t(51, 51, 756, 378, 1513), bounded=True),
    Peak(("H100 80GB HBM3",), 132, 3350, True, _t(67, 67, 989, 495, 1979)),
    Peak(("H200",), 132, 4800, True, _t(67, 67, 989, 495, 1979)),
    Peak(("A40",), 84, 696, False, _t(0.59, 37.4, 149.7, 74.8), bounded=True),
    Peak(("L40",), 142, 864, False, _t(1.41, 90.5, 181.05, 90.5, 362), bounded=True),
    Peak(("RTX 6000 Ada Generation",), 142, 960, False, {"fp32": 91.1}, bounded=True),
    Peak(("A10G",), 80, 600, False, {}, bounded=True),
    Peak(("B200",), 148, 7700, True, _t(37, 75, 2250, 1100, 4500)),
    Peak(("GeForce RTX 4090",), 128, 1008, False, _t(1.29, 82.5, 165, 82.5, 330), bounded=True),
    Peak(("GeForce RTX 5090",), 170, 1792, False, {"fp32": 104}, bounded=True),
    Peak(("RTX A6000",), 84, 768, False, {"fp32": 38.7}, bounded=True),
    Peak(("RTX PRO 6000 Blackwell Workstation Edition",), 188, 1792, False, {"fp32": 125}, bounded=True),
    Peak(("RTX PRO 6000 Blackwell Max-Q Workstation Edition",), 188, 1792, False, {}, bounded=True),
    Peak(("L20",), 92, 864, False, {"fp32": 59.3}, bounded=True),
    Peak(("H20",), 78, 4000, True, _t(1, 44, 148, 74), bounded=True),
    Peak(("A2",), 10, 200, False, _t(0.07, 4.5, 18.1, 9), bounded=True, low_power=True),
    Peak(("A16",), 10, 200, False, _t(0.067, 4.3, 17.3, 8.6), bounded=True, low_power=True),
    Peak(("V100-PCIE-16GB", "V100-PCIE-32GB"), 80, 897, True, {"fp64": 7.0, "fp32": 14.1}),
    Peak(("H200 NVL",), 132, 4800, True, {}, bounded=True),
    Peak(("B300 SXM6 AC",), 160, 8000, True, {}),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Floor:
    """Fractions of a peak: below `fail` fails, below `warn` warns."""

    fail: float
    warn: float


# Initial values, to be calibrated on real devices.
MEMORY_HBM = Floor(0.72, 0.80)
MEMORY_GDDR = Floor(0.65, 0.72)
GEMM = Floor(0.60, 0.70)
# Under sustained load the power limit lowers the clocks: a healthy H100 reached 0.71 of its peak at 700 W,
# after 0.81 in the first ten products.
GEMM_SUSTAINED = Floor(0.60, 0.65)
GEMM_BOUNDED = Floor(0.40, 0.50)
# A healthy T4 reaches 24 of 65 TFLOP/s, limited by its 70 W:
# https://forums.developer.nvidia.com/t/about-gpu-peak-performance/264462
GEMM_LOW_POWER = Floor(0.30, 0.34)
# Without tensor cores, a library's fp32 product reaches a smaller fraction of the peak.
GEMM_PLAIN = Floor(0.50, 0.60)
BASELINE = Floor(0.85, 0.92)
NODE_MEDIAN = Floor(0.85, 0.85)
PEER = Floor(0.75, 0.80)
# A device while all of the node are busy, in percent of its speed alone. Lower values mean that power or
# cooling do not suffice for all. There is no failure floor, since the cause may be the node.
JOINT_WARN_PERCENT = 85.0
# All-reduce across two nodes, as a fraction of the slowest port. Lower values mean a narrow link, or RDMA
# without direct access to GPU memory. There is no failure floor, since a link has two ends.
PORT_WARN = 0.5

# PCIe x16 by generation, in GB/s: link bandwidth, and the floor for pinned copies.
PCIE_PEAK = {1: 4.0, 2: 8.0, 3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
PCIE_FAIL = {1: 2.4, 2: 4.8, 3: 10.0, 4: 21.0, 5: 48.0, 6: 73.0}
NVLINK_GB_S = 25.0
NVLINK5_GB_S = 50.0

ENCRYPTED = "Not judged: confidential computing encrypts the link."

COVERAGE = 0.98
# Missing memory although no process uses any. Contexts on one driver differ by less between runs.
LEAK_MIB = 64

BETWEEN_NODES = "between_nodes_gb_s"
# Compared with the device's own last check, regardless of the software.
LINKS_UP = "nvlinks_up"
RETIRED = "retired_memory"
OWN = (LINKS_UP, RETIRED)
MEMORY_METRICS = ("copy_gb_s", "read_gb_s", "write_gb_s")
# By test: figures of units that no datasheet has. They are judged by the fleet only, as a warning.
UNIT_METRIC: Mapping[str, str] = {
    "functions": "functions_gop_s",
    "atomics": "atomics_gop_s",
    "shared_memory": "shared_gb_s",
    "caches": "l2_gb_s",
}
UNIT_METRICS = frozenset(UNIT_METRIC.values())
PRODUCT_RATES = ("_tflops", "_tops")
ALL_PAIRS = "all_pairs_gb_s:"
JOINT = "joint_burn_percent:"
# All-reduce across devices; the metric's name continues with their number and the library.
BUS_GB_S = "all_reduce_bus_gb_s"
_MAKER = re.compile(r"^(NVIDIA|Tesla)\s+|(?<!\s)\s+MIG\s.*", re.DOTALL)


class BadThreshold(ValueError):
    """A floor that could never fail or never be reached."""


def lint(fraction: float, name: str) -> float:
    """Return `fraction` if it is a valid floor. Raises `BadThreshold`."""
    if not LOWEST <= fraction <= HIGHEST:
        raise BadThreshold(f"{name}: {fraction:.2f} of the peak is not between {LOWEST} and {HIGHEST}")
    return fraction


def lint_floor(floor: Floor, name: str) -> None:
    """Check both fractions. Raises `BadThreshold`, also if `warn` is below `fail`."""
    lint(floor.fail, f"{name} fail")
    lint(floor.warn, f"{name} warn")
    if floor.warn < floor.fail:
        raise BadThreshold(f"{name}: the warning limit {floor.warn} is below the failure limit {floor.fail}")


def lint_all() -> None:
    """Check all floors. Raises `BadThreshold`."""
    for floor, name in (
        (MEMORY_HBM, "HBM"), (MEMORY_GDDR, "GDDR"), (GEMM, "product"), (GEMM_BOUNDED, "bounded product"),
        (GEMM_SUSTAINED, "sustained product"), (GEMM_LOW_POWER, "product of low power"),
        (GEMM_PLAIN, "plain product"), (BASELINE, "baseline"), (NODE_MEDIAN, "node median"), (PEER, "peer"),
    ):  # fmt: skip
        lint_floor(floor, name)
    for generation, peak in PCIE_PEAK.items():
        lint(PCIE_FAIL[generation] / peak, f"PCIe {generation}")


lint_all()


def peak_of(name: str) -> Peak | None:
    """Return the datasheet of a model by its exact name: an `H200 NVL` is not an `H200`."""
    plain = _MAKER.sub("", name).strip()
    plain = _MAKER.sub("", plain).strip()
    return next((peak for peak in PEAKS if plain in peak.names), None)


def _peak_value(metric: str, facts: Facts, peak: Peak) -> tuple[float, Floor] | None:
    """Return the peak of the device or MIG instance, and its floor."""
    if metric in MEMORY_METRICS:
        value = peak.memory_gb_s
        if facts.mig:
            if facts.memory_slices is None:
                return None
            value = value * facts.memory_slices / peak.slices
        return value, MEMORY_HBM if peak.hbm else MEMORY_GDDR
    speed = metric.removeprefix("gemm_").removesuffix("_tflops").removesuffix("_own")
    dtype = speed.removesuffix("_burst")
    if dtype not in peak.tflops:
        return None
    value = peak.tflops[dtype]
    if facts.mig:
        if facts.sms is None:
            return None
        value = value * facts.sms / peak.sms
    if peak.low_power:
        return value, GEMM_LOW_POWER
    if peak.bounded:
        return value, GEMM_BOUNDED
    if dtype in ("fp32", "fp64"):
        return value, GEMM_PLAIN
    return value, GEMM if speed != dtype else GEMM_SUSTAINED


def lacks_datasheet(metric: str, name: str) -> bool:
    """Return whether a metric needs a floor that the model's datasheet lacks."""
    peak = peak_of(name)
    judged = metric in MEMORY_METRICS or metric.endswith("_tflops")
    return judged and (peak is None or _peak_value(metric, Facts("", name=name), peak) is None)


def comparable(baseline_of: str, software: str) -> bool:
    """Return whether a baseline measured with `baseline_of` applies to results of `software`.

    The speed depends on driver and libraries; a difference is not a fault of the device. A baseline without a
    software version always applies.
    """
    return not baseline_of or baseline_of == software


def status_of(value: float, fail: float, warn: float) -> Status:
    """Compare a value with its floors; exactly at a floor passes."""
    if value < fail:
        return Status.FAILED
    return Status.WARNED if value < warn else Status.PASSED


def _unit(metric: str) -> str:
    if metric.endswith("_tops"):
        return "TOP/s"
    if metric.endswith("_gop_s"):
        return "Gop/s"
    return "TFLOP/s" if metric.endswith("_tflops") else "GB/s"


def judge(
    metric: str,
    value: float,
    facts: Facts,
    *,
    baseline: Mapping[str, float] | None = None,
    node_median: Mapping[str, float] | None = None,
) -> Judgement:
    """Judge a bandwidth or a matrix product, first by the fleet's baseline, then by the datasheet.

    Floors of datasheets assume cuBLAS. Results of the check's own kernels (`…_own_tflops`, `…_own_tops`) and
    of several devices are compared only with their own kind. Baselines outside the linted range are rejected:
    they come from a faulty or a different device.
    """
    unit = _unit(metric)
    own_kernel = metric.endswith(("_own_tflops", "_own_tops"))
    if facts.vgpu:
        return Judgement(
            metric, value, unit, Status.MEASURED, text="Not judged: a vGPU shares its device.", advisory=True
        )
    peak = peak_of(facts.name)
    sheet = _peak_value(metric, facts, peak) if peak else None
    reference = (baseline or {}).get(metric)
    note = ""
    fail = warn = 0.0
    against = "none"
    if reference is not None and sheet is not None and not own_kernel:
        try:
            lint(BASELINE.fail * reference / sheet[0], f"baseline of {metric}")
        except BadThreshold as error:
            reference, note = None, f"Ignored the {error}."
    if reference is not None and reference > 0:
        fail, warn, against = BASELINE.fail * reference, BASELINE.warn * reference, "baseline"
    elif sheet is not None and not own_kernel:
        fail, warn, against = sheet[1].fail * sheet[0], sheet[1].warn * sheet[0], "datasheet"
    median = (node_median or {}).get(metric, 0.0)
    status = status_of(value, fail, warn)
    if median > 0:
        floor = NODE_MEDIAN.fail * median
        if against == "none" or (value < floor and status != Status.FAILED):
            fail, warn, against = floor, NODE_MEDIAN.warn * median, "node_median"
            status = status_of(value, fail, warn)
    if against == "none":
        compared_only = metric in UNIT_METRICS or metric.startswith((ALL_PAIRS, BUS_GB_S))
        reason = (
            "measured by the check's own kernel"
            if own_kernel
            else "no other passed checks to compare with"
            if compared_only
            else f"no datasheet limit for {facts.name or 'this model'}, and no baseline of 3 devices"
        )
        return Judgement(
            metric,
            value,
            unit,
            Status.MEASURED,
            text=" ".join(filter(None, (note, f"Not judged: {reason}."))),
            advisory=own_kernel or compared_only,
        )
    return Judgement(metric, value, unit, status, round(fail, 3), round(warn, 3), against, note)


def judge_pcie(metric: str, value: float, facts: Facts) -> Judgement:
    """Judge one direction of the PCIe link by the generation and width of device and slot."""
    generation, width = facts.pcie_max_gen, facts.pcie_max_width
    if facts.vgpu or facts.mig:
        return Judgement(
            metric, value, "GB/s", Status.MEASURED, text="Not judged: the link is shared.", advisory=True
        )
    if facts.confidential:
        return Judgement(metric, value, "GB/s", Status.MEASURED, text=ENCRYPTED, advisory=True)
    if generation is None or not width or generation not in PCIE_FAIL:
        return Judgement(
            metric, value, "GB/s", Status.MEASURED, text="Not judged: the generation of the link is unknown."
        )
    fail = PCIE_FAIL[generation] * width / 16
    status = status_of(value, fail, fail)
    if facts.numa_hidden and status == Status.FAILED:
        return Judgement(
            metric, value, "GB/s", Status.WARNED, None, round(fail, 3), "link",
            "This virtual machine hides its NUMA nodes, so the memory may be far from the GPU.",
        )  # fmt: skip
    return Judgement(metric, value, "GB/s", status, round(fail, 3), round(fail, 3), "link")


def judge_peer(metric: str, value: float, links: int | None, facts: Facts) -> Judgement:
    """Judge the bandwidth to one peer by its active NVLinks; without any it is advisory."""
    if facts.confidential:
        return Judgement(metric, value, "GB/s", Status.MEASURED, text=ENCRYPTED, advisory=True)
    capability = facts.compute_capability
    if not links:
        return Judgement(
            metric, value, "GB/s", Status.MEASURED, text="Not judged: no NVLink to this peer.", advisory=True
        )
    link_gb_s = NVLINK5_GB_S if capability is not None and capability[0] >= 10 else NVLINK_GB_S
    fail, warn = PEER.fail * links * link_gb_s, PEER.warn * links * link_gb_s
    return Judgement(metric, value, "GB/s", status_of(value, fail, warn), fail, warn, "link")


def judge_port(metric: str, value: float, port_gb_s: float) -> Judgement:
    """Judge a link to another node by its slowest port; it can warn, but not fail."""
    if not port_gb_s:
        text = "Not judged: the speed of the ports is unknown."
        return Judgement(metric, value, "GB/s", Status.MEASURED, text=text, advisory=True)
    warn = lint(PORT_WARN, "port") * port_gb_s
    return Judgement(metric, value, "GB/s", status_of(value, 0.0, warn), None, round(warn, 3), "link")


def judge_joint(metric: str, value: float) -> Judgement:
    """Judge the speed of a device while others are busy by its speed alone; it can warn, but not fail."""
    warn = 100 * lint(JOINT_WARN_PERCENT / 100, "joint burn")
    return Judgement(metric, value, "%", status_of(value, 0.0, warn), None, warn, "alone")


def judge_link_state(facts: Facts, observed: Sequence[tuple[int | None, int | None]]) -> str:
    """Return the problem of the PCIe link under load, or an empty string.

    `observed`: generation and width during transfers. Idle links save power and prove nothing.
    """
    generations = [g for g, _ in observed if g is not None]
    widths = [w for _, w in observed if w is not None]
    wrong = []
    if facts.pcie_max_gen is not None and generations and max(generations) < facts.pcie_max_gen:
        wrong.append(f"generation {max(generations)} of {facts.pcie_max_gen}")
    if facts.pcie_max_width is not None and widths and max(widths) < facts.pcie_max_width:
        wrong.append(f"width {max(widths)} of {facts.pcie_max_width}")
    return " and ".join(wrong)
