"""Values that cross the boundary between the control plane and the node plane.

All are frozen; integers only (milli-CPU, milli-GPU, MiB), times are UTC seconds since the epoch.
`provisioning.messages` turns them into JSON and back, validated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

JsonScalar = str | int | float | bool | None
# Bounds of what nodes report: those of the columns that keep it. A message beyond them is refused.
_INT32 = 2**31 - 1
Whole = Annotated[int, Meta(ge=0, le=_INT32)]
Signed = Annotated[int, Meta(ge=-_INT32, le=_INT32)]
LargeMib = Annotated[int, Meta(ge=0, le=2**53)]
LargeCount = Annotated[int, Meta(ge=0, le=2**53)]
Word = Annotated[str, Meta(max_length=40)]
Name = Annotated[str, Meta(max_length=80)]
Line = Annotated[str, Meta(max_length=2000)]
Text = Annotated[str, Meta(max_length=65_536)]
Program = Annotated[str, Meta(min_length=1, max_length=200)]
EnvironmentDigest = Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")]
"""As `provisioning.environments.content.digest_of` makes it; empty for none."""
EnvironmentName = Annotated[str, Meta(pattern="^([a-z0-9][a-z0-9-]{0,62})?$")]
MountName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,39}(:rw)?$")]
"""A folder of the node that a workspace is shown, as `provisioning.mounts` names it."""
WHOLE_DEVICE_MILLI = 1000
HOME_HOLD = "home_hold"
"""Of a node's `facts`: a `HomeHold`, where there is a limit."""
PRESSURE = "pressure"
"""Of a node's `facts`: `cpu`, `memory`, `io` → percent of the last minute in which something on the machine
waited for it, None where the kernel does not tell."""
HEADROOM = "headroom"
"""Of a node's `facts`: what the machine has left over five minutes (`drivers/local/headroom.py`)."""
HOME_LIMIT = "home_limit_mib"
"""Of a pool's `config`: how much a home may hold, 0 for any amount. The portal adds it to what it sends."""


class Capability(StrEnum):
    """What a pool can do, as its driver reports it and REST shows it. Not every one has a driver yet."""

    WHOLE_GPU = "whole_gpu"
    MIG = "mig"
    REPARTITION = "repartition"
    SHARED_GPU = "shared_gpu"
    MULTI_GPU = "multi_gpu"
    MULTI_NODE = "multi_node"
    HOT_ATTACH = "hot_attach"
    LIVE_MIGRATION = "live_migration"
    RDMA = "rdma"
    DPU_OFFLOAD = "dpu_offload"
    MEMORY_TIERS = "memory_tiers"
    SNAPSHOTS = "snapshots"
    GVISOR = "gvisor"


class DeviceKind(StrEnum):
    """What an accelerator is to the scheduler."""

    GPU = "gpu"
    MIG = "mig"


class Isolation(StrEnum):
    """How a node keeps tenants apart."""

    NONE = "none"
    SANDBOX = "sandbox"
    GVISOR = "gvisor"
    CONTAINER = "container"
    VM = "vm"


class LimitEnforcement(StrEnum):
    """How a node holds a workspace to its CPU and memory."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NONE = "none"


class LimitedResource(StrEnum):
    """What a node can hold a workspace to. DISK is the home folder."""

    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"


class HomeHold(StrEnum):
    """What holds homes to their limit: the kernel, or that they are measured and growth is stopped."""

    PROJECT_QUOTA = "project_quota"
    MEASURED = "measured"


class ObservedState(StrEnum):
    """What was seen of a workspace on its backend. UNKNOWN never means dead."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Op(StrEnum):
    """What the control plane asks of a driver."""

    START = "start"
    OBSERVE = "observe"
    STOP = "stop"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node's sign of life.

    `machine_id` is a digest of the machine's own, `instance` what it chose when it joined (empty for the
    control plane's own node), `boot` names its last start, `clock` is its unix time.
    """

    machine_id: Annotated[str, Meta(max_length=128)]
    instance: Annotated[str, Meta(max_length=128)]
    boot: Annotated[str, Meta(max_length=128)]
    version: Word
    clock: Annotated[float, Meta(ge=0, le=1e11)]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """A pool as its driver sees it. `config` holds the driver's own settings."""

    slug: str
    driver: str
    config: Mapping[str, JsonScalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkspaceRef:
    """Names one incarnation of a workspace on a backend.

    `generation` grows with every start. Stopping or deleting closes a generation: a later start
    with the same or a lower one is refused as stale, so a late message cannot revive anything.
    """

    workspace_id: str
    generation: int

    @property
    def external_name(self) -> str:
        """The name on the backend, derived from the workspace's UUID alone."""
        return external_name(self.workspace_id)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of a start's log, and up to which byte it is told; `more` asks to go on at once."""

    text: str
    reached: int
    more: bool = False


def external_name(workspace_id: str) -> str:
    """`ws-` and the 32 hexadecimal digits of the UUID: a legal DNS label, unique by itself."""
    return "ws-" + workspace_id.replace("-", "").lower()


def home_key(team: str, owner: str) -> str:
    """Relative path of a home volume: one for each user in each team."""
    return f"{team}/{owner}"


class Within(StrEnum):
    """What the devices of one node must have in common. A tighter bond is preferred in any case."""

    NODE = "node"
    NUMA = "numa"
    ISLAND = "island"


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """`count` devices, each with `share_milli` of a device (1000 is a whole one).

    `model` names the one model that will do, `models` several; both empty means any. `memory_mib` is
    what a whole device must have at least, and what a share takes of its device. `mig_profile` asks for
    MIG instances of that profile, such as `1g.10gb`. `within` requires a bond between the devices.
    """

    count: int = 0
    model: str = ""
    share_milli: int = WHOLE_DEVICE_MILLI
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    mig_profile: str = ""
    within: Within = Within.NODE

    @property
    def allowed_models(self) -> tuple[str, ...]:
        """The models that will do; empty means any."""
        return (self.model, *self.models) if self.model else self.models


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What has to be found free, per node, on `nodes` nodes at once.

    `labels` are pairs that a node must carry; `needs` are names that it must provide, such as `rdma`,
    `dpu_offload`, `memory_tier:cxl` or `licence:vgpu`.
    """

    cpu_milli: int
    memory_mib: int
    disk_mib: int = 0
    nodes: int = 1
    accelerators: AcceleratorRequest = AcceleratorRequest()
    labels: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AppSpec:
    """The program of a workspace.

    `argv` may hold the placeholders `{port}`, `{home}`, `{token}`, `{token_file}` (a file with the
    token, mode 0600) and `{name}`; they are replaced inside the workspace, argument by argument, with
    no shell in between. `env` likewise.

    `ready_path` is the HTTP path on the app's port whose answer (any status below 500) means ready.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/"
    activity: str = ""
    start_timeout_s: int = 120
    stop_timeout_s: int = 10


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How the agent inside the workspace calls back. `token` is good for this workspace alone."""

    url: str
    token: str = field(repr=False)
    heartbeat_s: int = 15


@dataclass(frozen=True, slots=True)
class EgressLimit:
    """`egress` is `open`, `list` or `none`; `allow` lists networks and hosts, separated by commas."""

    egress: Word
    allow: Text = ""


class CheckoutKind(StrEnum):
    """What a repository is to a workspace."""

    REPOSITORY = "repository"
    DOTFILES = "dotfiles"


@dataclass(frozen=True, slots=True)
class CheckoutSpec:
    """A repository that the agent clones beside the app (`provisioning/git_urls.py` says which addresses).

    `ref` is a branch, tag or commit, empty for the repository's own branch. With `credential` the portal
    hands the agent a credential for it, as it does secrets. `limit_mib` is how large it may be, 0 for any.
    """

    kind: CheckoutKind
    url: Annotated[str, Meta(max_length=500)]
    ref: Annotated[str, Meta(max_length=200)] = ""
    credential: bool = False
    timeout_s: Whole = 900
    script_timeout_s: Whole = 300
    limit_mib: LargeMib = 0


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    """Everything a driver needs to start one workspace. `app_token` is the upstream secret.

    With `secrets` its agent asks the portal for the workspace's secrets before it starts the app: no value of
    one is in here.

    `environment` is the digest of the software environment that it runs in; empty for the node's own notebook
    environment. What its user installs is kept by `environment_name` (empty: by the digest), so that it is
    there in the next version too; with `reset_packages` that is removed first.
    `egress` says what it may reach, besides what its pool and its node say: the tightest of all counts.
    `checkouts` are cloned once its app has been started, which goes on whatever becomes of them.
    """

    ref: WorkspaceRef
    name: str
    owner: str
    team: str
    template: str
    app: AppSpec
    resources: ResourceRequest
    agent: AgentSpec
    app_token: str = field(repr=False)
    environment: EnvironmentDigest = ""
    environment_name: EnvironmentName = ""
    reset_packages: bool = False
    egress: tuple[EgressLimit, ...] = ()
    secrets: bool = False
    checkouts: Annotated[tuple[CheckoutSpec, ...], Meta(max_length=4)] = ()
    mounts: Annotated[tuple[MountName, ...], Meta(max_length=8)] = ()

    @property
    def home_key(self) -> str:
        """Relative path of the home volume: one for each user in each team."""
        return home_key(self.team, self.owner)

    def digest(self) -> str:
        """SHA-256 of the specification without its secrets; equal digests mean equal workspaces.

        `reset_packages`, `secrets` and `checkouts` are left out: they say what to do on the way, not what it
        is.
        """
        body = asdict(self)
        body.pop("app_token")
        body.pop("reset_packages")
        body.pop("secrets")
        body.pop("checkouts")
        body["agent"].pop("token")
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """A device, or a share of one, given to a workspace.

    `memory_mib` is what a share may hold of its memory; 0 for a whole one, and where that goes by `milli`.
    """

    uuid: str
    milli: int = WHOLE_DEVICE_MILLI
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG instance to create: its profile and where it begins on the GPU's memory axis."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class MigRepartition:
    """A change of one GPU's MIG layout: idle instances to destroy first, then those to create."""

    parent_uuid: str
    destroy: tuple[str, ...]
    create: tuple[MigSlice, ...]


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """What a workspace gets on one node.

    `repartitions` come first: the instances that they create have no UUID yet, so `devices` lacks them.
    It is empty unless the caller of the placement engine allowed repartitioning.
    """

    node: str
    devices: tuple[DeviceGrant, ...] = ()
    repartitions: tuple[MigRepartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a workspace goes: one entry for each node."""

    nodes: tuple[NodePlacement, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a driver saw of one workspace.

    `ready` is set when the app has been seen to answer. `endpoint` is the URL at which the gateway
    reaches the app. `code` and `message` explain FAILED and UNKNOWN; `log_tail` holds the app's
    last lines when it failed.
    """

    ref: WorkspaceRef
    state: ObservedState
    ready: bool = False
    endpoint: Annotated[str, Meta(max_length=200)] = ""
    spec_digest: Annotated[str, Meta(max_length=128)] = ""
    exit_code: Signed | None = None
    code: Name = ""
    message: Text = ""
    log_tail: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One accelerator as inventory saw it. `nodes` are the device files that a tenant needs.

    A GPU with `mig_mode` is handed out by its instances only, which are devices of their own: `kind` MIG,
    with `parent_uuid`, `mig_profile` and `mig_start` (-1: not told). `island` names the NVLink island on
    its node (empty: none), `numa` the NUMA node (-1: not known), `compute_capability` such as `9.0`.
    `facts` is small JSON for people, and changes only when the device does: live values are in samples.
    """

    uuid: Name
    index: Whole
    model: Name
    memory_mib: Whole
    kind: DeviceKind = DeviceKind.GPU
    parent_uuid: Name = ""
    healthy: bool = True
    health_note: Line = ""
    nodes: tuple[Line, ...] = ()
    mig_mode: bool = False
    mig_profile: Word = ""
    mig_start: Signed = -1
    island: Word = ""
    numa: Signed = -1
    compute_capability: Annotated[str, Meta(max_length=8)] = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldEnvironment:
    """A software environment that is whole on a node, with the programs that it brings along.

    With `folder` it is one that was there already, under that path; `python` is its Python in full,
    `package_count` how many packages it has, `fingerprint` equal where Python and packages are.
    """

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    size_mib: LargeMib
    programs: Annotated[tuple[Program, ...], Meta(max_length=1024)] = ()
    folder: Annotated[str, Meta(max_length=200)] = ""
    python: Word = ""
    package_count: Whole = 0
    fingerprint: Annotated[str, Meta(max_length=64)] = ""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One host as inventory saw it.

    `programs` maps each program that a template may start to its path, or to the empty string
    where it is not installed. `limited` is what no workspace there can take too much of. `warnings` are
    sentences for the operator, each with its fix.
    `accelerator_state` is `ok`, `no_driver`, `no_gpu`, `driver_mismatch`, `gpu_lost`, `reset_required`,
    `no_permission`, `timeout` or `error` (empty: not told). `provides` answers a request's `needs`: `rdma`,
    `dpu_offload`, `memory_tier:cxl`, `cpu:amx` … `facts` is JSON for people, as on a device.
    """

    name: Annotated[str, Meta(min_length=1, max_length=120)]
    cpu_milli: Whole
    memory_mib: LargeMib
    disk_mib: LargeMib
    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=4096)] = ()
    programs: Annotated[Mapping[Line, Line], Meta(max_length=1024)] = field(default_factory=dict)
    isolation: Isolation = Isolation.NONE
    limits: LimitEnforcement = LimitEnforcement.NONE
    limited: tuple[LimitedResource, ...] = ()
    accelerator_note: Line = ""
    warnings: Annotated[tuple[Line, ...], Meta(max_length=256)] = ()
    online: bool = True
    driver_version: Word = ""
    cuda_version: Annotated[str, Meta(max_length=20)] = ""
    accelerator_state: Annotated[str, Meta(max_length=30)] = ""
    provides: Annotated[tuple[Line, ...], Meta(max_length=1024)] = ()
    labels: Annotated[Mapping[Line, Line], Meta(max_length=1024)] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    environments: Annotated[tuple[HeldEnvironment, ...], Meta(max_length=512)] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a pool has, seen at `observed_at`."""

    nodes: Annotated[tuple[NodeInfo, ...], Meta(max_length=100_000)]
    capabilities: frozenset[Capability]
    observed_at: Annotated[float, Meta(ge=0, le=1e11)]


@dataclass(frozen=True, slots=True)
class Failure:
    """A `ProvisioningError` on its way back to the control plane."""

    code: Name
    message: Text
    retryable: bool
    blame: Word


@dataclass(frozen=True, slots=True)
class Command:
    """One request to a driver. It is refused after `expires_at`, and its result carries `lease`.

    `grace_s` is for STOP and DELETE (`Driver.ensure_stopped`).
    """

    op: Op
    pool: PoolConfig
    ref: WorkspaceRef
    lease: str
    expires_at: float
    spec: WorkspaceSpec | None = None
    placement: Placement | None = None
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class HomeDeletion:
    """A request to a driver to delete a home for good, or to go on with it.

    It is refused after `expires_at`; `deletion` and `lease` come back with the answer.
    """

    deletion: str
    lease: str
    pool: PoolConfig
    team: str
    owner: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class HomeDeleted:
    """The answer to a `HomeDeletion`: whether nothing is left of the home (`done`), or a failure."""

    deletion: Word
    lease: Word
    done: bool = False
    failure: Failure | None = None


class LeftoverKind(StrEnum):
    """What can be left on a node that nobody owns."""

    WORKSPACE = "workspace"
    PROCESS = "process"
    CONTROL_GROUP = "control_group"
    FOLDER = "folder"
    HOME = "home"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something on a node without an owner there; `name` is what it is found by again.

    `removed_at` is when the node has removed it by itself; 0 while it is there. `size_mib` is None where
    nothing was measured.
    """

    kind: LeftoverKind
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    detail: Annotated[str, Meta(max_length=400)] = ""
    size_mib: LargeMib | None = None
    removed_at: Annotated[float, Meta(ge=0, le=1e11)] = 0.0


@dataclass(frozen=True, slots=True)
class LeftoverRemoval:
    """A request to remove a leftover; refused after `expires_at`. `orphan` and `lease` come back."""

    orphan: str
    lease: str
    pool: PoolConfig
    kind: LeftoverKind
    name: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class LeftoverRemoved:
    """The answer: whether nothing of it is left (`done`; else there is more to do), or a failure."""

    orphan: Word
    lease: Word
    done: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class HomeUsage:
    """What a home (`<team>/<owner>`) takes on a disk; `hidden` where more is in there than was seen.

    `files` counts folders too. Of them there may be `most_files`, its share of the disk's inodes; 0 where
    there is no limit, or where the file system makes inodes as long as there is room.
    """

    home: Annotated[str, Meta(max_length=200)]
    used_mib: LargeMib
    hidden: bool = False
    files: LargeCount = 0
    most_files: LargeCount = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a `Command`: an observation or a failure, never both."""

    op: Op
    ref: WorkspaceRef
    lease: str
    observation: Observation | None = None
    failure: Failure | None = None
