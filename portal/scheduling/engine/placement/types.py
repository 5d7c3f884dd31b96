"""Input and results of placement: immutable, with integer amounts (milli-CPU, milli-GPU, MiB)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from portal.common.reasons.reason import Reason
from portal.scheduling.engine.placement.mig_layouts import Geometry
from provisioning.types import WHOLE_DEVICE_MILLI, DeviceKind, Placement, ResourceRequest

Version = tuple[int, int]
"""Major and minor version number."""
UNKNOWN_VERSION: Version = (0, 0)
NodeReason = tuple[str, Reason]
"""The name of a node (or pool), and why it rejects the request."""


@dataclass(frozen=True, slots=True)
class SoftwareRequirements:
    """A template's software requirements for nodes. None and the empty string require nothing.

    A device of one of `models` (empty: any) must have `min_compute_capability`.
    """

    program: str = ""
    min_cuda: Version | None = None
    min_compute_capability: Version | None = None
    models: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.program or self.min_cuda or self.min_compute_capability)


@dataclass(frozen=True, slots=True, order=True)
class NodeSoftware:
    """A node's programs, the newest CUDA version of its driver, and its compute capabilities by model.

    Unknown versions are `UNKNOWN_VERSION`, which meets no requirement.
    """

    programs: tuple[str, ...] = ()
    cuda: Version = UNKNOWN_VERSION
    compute_capabilities: tuple[tuple[str, Version], ...] = ()

    def meets(self, needed: SoftwareRequirements) -> bool:
        """Return whether the node has the required program, driver and device."""
        return (
            (not needed.program or needed.program in self.programs)
            and (needed.min_cuda is None or self.cuda >= needed.min_cuda)
            and self.has_capability(needed)
        )

    def has_capability(self, needed: SoftwareRequirements) -> bool:
        """Return whether a device of the requested models has the compute capability."""
        least = needed.min_compute_capability
        return least is None or any(
            version >= least and (not needed.models or model in needed.models)
            for model, version in self.compute_capabilities
        )


HOME_LABEL = "berth:home"
"""Label with the node's own name, in pools that keep homes on nodes. Not part of an inventory."""
LOST_HOME_LABEL = "berth:lost-home"
"""Label that no node has: the user's home is on a removed machine, named by the value."""
MOVING_HOME_LABEL = "berth:moving-home"
"""Label that no node has: the user's home is being moved to the machine named by the value."""
ARCHIVED_HOME_LABEL = "berth:archived-home"
"""Label that no node has: the user's home is being archived or restored on the machine of the value."""
AWAY_HOME_LABEL = "berth:away-home"
"""Label that no node has: the user's home exists only as an archive on the machine of the value."""
HOME_LABELS = frozenset(
    {HOME_LABEL, LOST_HOME_LABEL, MOVING_HOME_LABEL, ARCHIVED_HOME_LABEL, AWAY_HOME_LABEL}
)


@dataclass(frozen=True, slots=True)
class TemplateRequest(ResourceRequest):
    """A request together with the software requirements of its template."""

    software: SoftwareRequirements = SoftwareRequirements()


def software_of(request: ResourceRequest) -> SoftwareRequirements:
    """Return the software requirements of a request; a plain `ResourceRequest` has none."""
    return request.software if isinstance(request, TemplateRequest) else _NO_SOFTWARE


_NO_SOFTWARE = SoftwareRequirements()


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """An accelerator in a placement snapshot, with `free_milli` of 1000 free.

    - `free_memory_mib`: -1 if memory is shared in proportion to the milli-GPUs.
    - `parent_uuid`, `mig_profile`, `mig_start`: GPU, profile and first slot of an instance (`kind` MIG).
    - `mig_mode`: the GPU is granted as instances only.
    - `island`, `numa`: NVLink island and NUMA node (-1: unknown).
    - `unusable`: why the device cannot be granted.
    - `warned`: the device has a warning and is granted last, across all nodes.
    - `layout`: MIG profiles reported by the GPU's driver (None: use the table).
    - `fixed`: the MIG layout cannot change now.
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
    """A node in a placement snapshot. `unusable` says why it takes no work.

    `provides` is compared with a request's `needs`, `labels` with its labels, `software` with its template's
    requirements. `rack` and `block` are the location; multi-node requests are kept close together.
    `home_gpu_milli` and `home_cpu_milli` are the average use of the owners of homes on the node.
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
    home_gpu_milli: int = 0
    home_cpu_milli: int = 0


@dataclass(frozen=True, slots=True)
class ModelPreference:
    """Differences between models for a request that accepts several, besides their placements.

    - `penalty`: score levels to subtract, by model, for other requests' needs and for its price.
    - `value_rank`: position by model from the least valuable, 0 to 63. The lowest wins a tie.
    """

    penalty: Mapping[str, int]
    value_rank: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best place of a request in one cluster.

    `rank` is comparable between clusters for the same request; the highest wins. `model` is that of the
    devices, or empty without devices.
    """

    placement: Placement
    rank: tuple[int, int]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A positive decision with the placement."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """A negative decision with each node's reason, in snapshot order."""

    reasons: tuple[NodeReason, ...]
