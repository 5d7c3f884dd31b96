"""What placement decides on and answers. Frozen values; integers only (milli-CPU, milli-GPU, MiB)."""

from __future__ import annotations

from dataclasses import dataclass, field

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement.mig_layouts import Geometry
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind, Placement, ResourceRequest

Version = tuple[int, int]
"""Major and minor number, compared as numbers."""
UNKNOWN_VERSION: Version = (0, 0)
NodeReason = tuple[str, Reason]
"""A node's (or pool's) name, and why it does not take the request."""


@dataclass(frozen=True, slots=True)
class SoftwareRequirements:
    """What a template's software needs of a node; None and the empty string need nothing.

    A device of one of `models` (empty: of any) must have `min_compute_capability`.
    """

    program: str = ""
    min_cuda: Version | None = None
    min_compute_capability: Version | None = None
    models: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.program or self.min_cuda or self.min_compute_capability)


@dataclass(frozen=True, slots=True, order=True)
class NodeSoftware:
    """What a node can run: its programs, the newest CUDA of its driver, and each model's compute capability.

    What is not known is `UNKNOWN_VERSION`, which meets no requirement.
    """

    programs: tuple[str, ...] = ()
    cuda: Version = UNKNOWN_VERSION
    compute_capabilities: tuple[tuple[str, Version], ...] = ()

    def meets(self, needed: SoftwareRequirements) -> bool:
        """Whether it has the program, the driver and a device that the requirements ask for."""
        return (
            (not needed.program or needed.program in self.programs)
            and (needed.min_cuda is None or self.cuda >= needed.min_cuda)
            and self.has_capability(needed)
        )

    def has_capability(self, needed: SoftwareRequirements) -> bool:
        """Whether a device of the models asked for has the compute capability."""
        least = needed.min_compute_capability
        return least is None or any(
            version >= least and (not needed.models or model in needed.models)
            for model, version in self.compute_capabilities
        )


HOME_LABEL = "berth:home"
"""A label that a node has with its own name, where its pool keeps homes apart; no inventory gives it."""
LOST_HOME_LABEL = "berth:lost-home"
"""A label that no node has: the home of who asks lies on a removed machine, which is its value."""
MOVING_HOME_LABEL = "berth:moving-home"
"""A label that no node has: the home of who asks is on its way to the machine that is its value."""
ARCHIVED_HOME_LABEL = "berth:archived-home"
"""A label that no node has: an archive of the home of who asks is made or restored on its value."""
AWAY_HOME_LABEL = "berth:away-home"
"""A label that no node has: the home of who asks was put away in an archive on its value."""
HOME_LABELS = frozenset(
    {HOME_LABEL, LOST_HOME_LABEL, MOVING_HOME_LABEL, ARCHIVED_HOME_LABEL, AWAY_HOME_LABEL}
)


@dataclass(frozen=True, slots=True)
class TemplateRequest(ResourceRequest):
    """A request with the software that its template needs of each node."""

    software: SoftwareRequirements = SoftwareRequirements()


def software_of(request: ResourceRequest) -> SoftwareRequirements:
    """The software that a request needs; a plain `ResourceRequest` needs none."""
    return request.software if isinstance(request, TemplateRequest) else _NO_SOFTWARE


_NO_SOFTWARE = SoftwareRequirements()


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """An accelerator in a placement snapshot; `free_milli` of 1000 are free.

    `free_memory_mib` of -1 means that memory is shared in proportion to the milli-GPUs. A MIG instance
    has `kind` MIG, its `parent_uuid`, its `mig_profile` and where it begins (`mig_start`); a GPU with
    `mig_mode` is handed out by instances only. `island` names the NVLink island, `numa` the NUMA node
    (-1: unknown). `unusable` says why the device may not be handed out. A device with a warning (`warned`) is
    handed out after those without, on whichever node they are. `layout` are the MIG
    profiles that a GPU's driver tells (None: those of the table); `fixed`: it may not change now.
    """

    uuid: str
    model: str
    memory_mib: int
    free_milli: int = WHOLE_DEVICE_MILLI
    free_memory_mib: int = -1
    kind: DeviceKind = DeviceKind.GPU
    parent_uuid: str = ""
    mig_mode: bool = False
    mig_profile: str = ""
    mig_start: int = -1
    island: str = ""
    numa: int = -1
    unusable: Reason | None = None
    warned: bool = False
    layout: Geometry | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A node in a placement snapshot. `unusable` says why nothing may be placed here.

    `provides` answers a request's `needs`, `labels` its labels, `software` what its template needs. `rack`
    and `block` say where the node stands; requests for several nodes keep close together.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    disk_mib: int
    free_cpu_milli: int
    free_memory_mib: int
    free_disk_mib: int
    devices: tuple[DeviceCapacity, ...] = ()
    unusable: Reason | None = None
    labels: tuple[tuple[str, str], ...] = ()
    provides: tuple[str, ...] = ()
    rack: str = ""
    block: str = ""
    software: NodeSoftware = field(default_factory=NodeSoftware)


@dataclass(frozen=True, slots=True)
class Placed:
    """The decision to place, and where."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """The decision not to place, with the reason of each node in the snapshot's order."""

    reasons: tuple[NodeReason, ...]
