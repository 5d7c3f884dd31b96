"""Node results of checks and scrubs, created by hand, and their runs."""

from __future__ import annotations

import copy
from typing import Any

from portal.fleet.inventory.models import AllocatedDevice, Device, Pool
from portal.gpu_checks import results
from portal.gpu_checks.models import GpuCheckRun
from provisioning import messages
from provisioning.check_messages import CheckAnswer, CheckCommand
from provisioning.drivers.simulated import faults
from provisioning.gpu.check.types import Verdict
from provisioning.gpu.scrub import ScrubResult, ScrubVerdict
from provisioning.types import DeviceInfo, Failure, NodeInfo
from tests.broker import Broker
from tests.factories import local_pool_with, node_info


def checked_pool(*nodes: NodeInfo, slug: str = "this-machine") -> Pool:
    """A pool of real devices with the default check policy; tests answer for its nodes."""
    pool = local_pool_with(*nodes, slug=slug)
    Pool.objects.filter(pk=pool.pk).update(check_every_hours=168, hand_out_max_age_hours=24)
    pool.refresh_from_db()
    return pool


def linked_node(name: str, gpus: int, *, of: int = 8) -> NodeInfo:
    """A node whose GPUs have NVLinks, in islands of `of`."""
    devices = tuple(
        DeviceInfo(
            uuid=f"GPU-{name}-{index}", index=index, model="NVIDIA H100 80GB HBM3", memory_mib=81_559,
            island=f"nvlink-{index // of}",
        )
        for index in range(gpus)
    )  # fmt: skip
    return node_info(name, devices=devices)


def commands(sent: Broker) -> list[CheckCommand]:
    """Remove and return the pending checks and scrubs."""
    kinds = ("check", "scrub", "pair", "joint")
    pending = [message for kind in kinds for message in sent.take(f"node.gpu_{kind}")]
    return [messages.load(message.kwargs["command"], CheckCommand) for message in pending]


def only(sent: Broker) -> CheckCommand:
    pending = commands(sent)
    assert len(pending) == 1, pending
    return pending[0]


def real_report(command: CheckCommand, *wrong: str, **changes: Any) -> dict[str, Any]:
    """A report of a real device in the published schema; `wrong` as in the simulation's faults."""
    simulated = faults.check_report(
        command.uuid,
        command.level,
        model="Simulated H100",
        memory_mib=81_559,
        faults=frozenset(wrong),
        busy="busy" in wrong,
        now=1_800_000_000.0,
        check_s=0,
        meeting=command.meeting,
        joint_with=command.peers if command.kind == "joint" else (),
    )
    report = copy.deepcopy(simulated.to_dict())
    report["simulated"] = False
    if report["verdict"] == Verdict.INCONCLUSIVE and not wrong:
        report |= {"verdict": "pass", "exit_code": 0, "summary": "All tests passed."}
    if "slow_memory" in wrong:
        report |= {"verdict": "degraded", "exit_code": 1}
    return report | changes


def unavailable(command: CheckCommand) -> dict[str, Any]:
    """The report of a node without the needed library."""
    report = faults.no_such_device(command.uuid, command.level, 1_800_000_000.0).to_dict()
    missing = {"text": "The CUDA bindings are missing.", "library": "cuda-bindings", "fix": "Install it."}
    return report | {"simulated": False, "unavailable": missing, "summary": "The CUDA bindings are missing."}


def answer(command: CheckCommand, *wrong: str, **changes: Any) -> bool:
    """Report a check's result; return whether it was accepted."""
    return tell(command, report=real_report(command, *wrong, **changes))


def tell(
    command: CheckCommand, *, report: dict[str, Any] | None = None, failure: Failure | None = None
) -> bool:
    return results.apply_answer(
        CheckAnswer(command.kind, command.run, command.lease, command.uuid, report=report, failure=failure)
    )


def scrubbed(command: CheckCommand, verdict: str = "clean", **fields: Any) -> bool:
    """Report a scrub's result; return whether it was accepted."""
    assert command.kind == "scrub"
    free = fields.pop("free_mib", 80_000)
    text = fields.pop("text", f"It is {verdict}.")
    result = ScrubResult(command.uuid, ScrubVerdict(verdict), text, free_mib=free, **fields)
    return tell(command, report=messages.dump(result))


def failure(code: str = "backend_unavailable") -> Failure:
    return Failure(code=code, message="The node met an error.", retryable=True, blame="backend")


def run_of(command: CheckCommand) -> GpuCheckRun:
    return GpuCheckRun.objects.get(pk=command.run)


def fresh(device: Device) -> Device:
    return Device.objects.select_related("node", "node__pool").get(pk=device.pk)


def held(device: Device) -> bool:
    return AllocatedDevice.objects.filter(device=device, active=True).exists()
