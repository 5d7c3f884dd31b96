"""Values exchanged between the control plane and the node plane.

All are frozen. Amounts are integers (milli-CPU, milli-GPU, MiB); times are UTC seconds since the epoch.
`provisioning.messages` converts them to JSON and back, and validates them.
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
# Bounds of what nodes report: those of the columns that store it. A message beyond them is rejected.
_INT32 = 2**31 - 1
Whole = Annotated[int, Meta(ge=0, le=_INT32)]
Signed = Annotated[int, Meta(ge=-_INT32, le=_INT32)]
UtcSeconds = Annotated[float, Meta(ge=0, le=1e11)]
LargeMib = Annotated[int, Meta(ge=0, le=2**53)]
LargeCount = Annotated[int, Meta(ge=0, le=2**53)]
Word = Annotated[str, Meta(max_length=40)]
Name = Annotated[str, Meta(max_length=80)]
Line = Annotated[str, Meta(max_length=2000)]
Text = Annotated[str, Meta(max_length=65_536)]
Program = Annotated[str, Meta(min_length=1, max_length=200)]
EnvironmentDigest = Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")]
"""Digest computed by `provisioning.environments.content.digest_of`; empty for none."""
EnvironmentName = Annotated[str, Meta(pattern="^([a-z0-9][a-z0-9-]{0,62})?$")]
MountName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,39}(:rw)?$")]
"""Folder of the node that a workspace mounts, by its name in `provisioning.mounts`."""
WHOLE_DEVICE_MILLI = 1000
HOME_HOLD = "home_hold"
"""Key in a node's `facts`: a `HomeHold`, present when homes are limited."""
PRESSURE = "pressure"
"""Key in a node's `facts`: `cpu`, `memory`, `io` → percent of the last minute in which a task on the machine
waited for it (PSI), or None if the kernel does not report it."""
HEADROOM = "headroom"
"""Key in a node's `facts`: unused capacity of the machine over 5 minutes (`drivers/local/headroom.py`)."""
HOME_LIMIT = "home_limit_mib"
"""Key in a pool's `config`: limit per home in MiB, 0 for no limit. The portal adds it to the configuration
that it sends."""


class Capability(StrEnum):
    """Something a pool can do, as reported by its driver and shown by REST. Some have no driver yet."""

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
    """Kind of accelerator."""

    GPU = "gpu"
    MIG = "mig"


class Isolation(StrEnum):
    """How a node isolates tenants from each other."""

    NONE = "none"
    SANDBOX = "sandbox"
    GVISOR = "gvisor"
    CONTAINER = "container"
    VM = "vm"


class LimitEnforcement(StrEnum):
    """Mechanism that enforces CPU and memory limits on a node."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NONE = "none"


class LimitedResource(StrEnum):
    """Resource that a node can limit per workspace. DISK is the home folder."""

    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"


class HomeHold(StrEnum):
    """How homes are limited: by the kernel's project quota, or by measuring them and stopping growth."""

    PROJECT_QUOTA = "project_quota"
    MEASURED = "measured"


class ObservedState(StrEnum):
    """Observed state of a workspace on its backend. UNKNOWN never means dead.

    QUEUED: an engine that places by itself has accepted the workspace and has not placed it yet.
    """

    ABSENT = "absent"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Op(StrEnum):
    """Operation that the control plane requests from a driver."""

    START = "start"
    OBSERVE = "observe"
    STOP = "stop"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node's heartbeat.

    `machine_id` is a digest of the machine's own ID. `instance` is the ID that the node chose when it joined
    (empty for the control plane's own node). `boot` identifies its last start. `clock` is its Unix time.
    """

    machine_id: Annotated[str, Meta(max_length=128)]
    instance: Annotated[str, Meta(max_length=128)]
    boot: Annotated[str, Meta(max_length=128)]
    version: Word
    clock: Annotated[float, Meta(ge=0, le=1e11)]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """A pool as seen by its driver. `config` holds the driver's own settings."""

    slug: str
    driver: str
    config: Mapping[str, JsonScalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkspaceRef:
    """Identifies one incarnation of a workspace on a backend.

    `generation` grows with every start. Stopping or deleting closes a generation: a later start with the same
    or a lower one is rejected as stale, so a late message cannot revive a workspace.
    """

    workspace_id: str
    generation: int

    @property
    def external_name(self) -> str:
        """Name on the backend, derived only from the workspace's UUID."""
        return external_name(self.workspace_id)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A piece of a start's log. `reached` is the byte offset of its end; `more` if more is available now."""

    text: str
    reached: int
    more: bool = False


def external_name(workspace_id: str) -> str:
    """Return `ws-` and the 32 hexadecimal digits of the UUID: a valid, unique DNS label."""
    return "ws-" + workspace_id.replace("-", "").lower()


def home_key(team: str, owner: str) -> str:
    """Return the relative path of a home volume: one per user and team."""
    return f"{team}/{owner}"


class Within(StrEnum):
    """What the devices of one node must share. A closer link is preferred in any case."""

    NODE = "node"
    NUMA = "numa"
    ISLAND = "island"


@dataclass(frozen=True, slots=True)
class AcceleratorRequest:
    """A request for `count` devices, each with `share_milli` of a device (1000 is a whole one).

    `model` names the only accepted model, `models` several; both empty accept any. `memory_mib` is the
    minimum of a whole device, or the amount that a share takes. `mig_profile` requests MIG instances of that
    profile, such as `1g.10gb`. `within` requires a link between the devices.
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
        """Accepted models; empty accepts any."""
        return (self.model, *self.models) if self.model else self.models


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Resources required per node, on `nodes` nodes at once.

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

    `argv` may contain the placeholders `{port}`, `{home}`, `{token}`, `{token_file}` (a file with the token,
    mode 0600) and `{name}`. They are replaced inside the workspace, argument by argument, without a shell;
    likewise in `env`.

    `ready_path` is the HTTP path on the app's port; any status below 500 means ready.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/"
    activity: str = ""
    start_timeout_s: int = 120
    stop_timeout_s: int = 10


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How the agent inside the workspace reaches the portal. `token` is valid for this workspace only."""

    url: str
    token: str = field(repr=False)
    heartbeat_s: int = 15


@dataclass(frozen=True, slots=True)
class EgressLimit:
    """An egress limit: `egress` is `open`, `list` or `none`; `allow` lists networks and hosts with commas."""

    egress: Word
    allow: Text = ""


class CheckoutKind(StrEnum):
    """Purpose of a repository in a workspace."""

    REPOSITORY = "repository"
    DOTFILES = "dotfiles"


@dataclass(frozen=True, slots=True)
class CheckoutSpec:
    """A repository that the agent clones while the app runs (`provisioning/git_urls.py` defines valid URLs).

    `ref` is a branch, tag or commit; empty for the default branch. With `credential` the agent fetches a
    credential from the portal, like secrets. `limit_mib` is its maximum size, 0 for no limit.
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

    With `secrets` the agent fetches the workspace's secrets from the portal before it starts the app. The
    specification contains no secret values.

    `environment` is the digest of its software environment; empty selects the node's notebook environment.
    Packages that the user installs are stored by `environment_name` (by the digest if empty), so they survive
    a new version. `reset_packages` removes them before the start. `egress` combines with the limits of the
    pool and the node; the strictest applies. `checkouts` are cloned after the app has started; a failed clone
    does not affect the app.
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
        """Relative path of the home volume: one per user and team."""
        return home_key(self.team, self.owner)

    def digest(self) -> str:
        """Return the SHA-256 of the specification without its secrets; equal digests mean equal workspaces.

        `reset_packages`, `secrets` and `checkouts` are left out: they describe steps of the start, not the
        workspace.
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
    """A device, or a share of one, granted to a workspace.

    `memory_mib` limits a share's device memory; 0 for a whole device, and where the limit follows from
    `milli`.
    """

    uuid: str
    milli: int = WHOLE_DEVICE_MILLI
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A MIG instance to create: its profile and its start on the GPU's memory axis."""

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
    """Resources of a workspace on one node.

    `repartitions` are applied first. The instances that they create have no UUID yet and are missing in
    `devices`. Empty unless the caller of the placement engine allowed repartitioning.
    """

    node: str
    devices: tuple[DeviceGrant, ...] = ()
    repartitions: tuple[MigRepartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of a workspace: one entry per node."""

    nodes: tuple[NodePlacement, ...]


@dataclass(frozen=True, slots=True)
class EngineQueue:
    """Why a QUEUED workspace waits at its engine, as of `seen_at`.

    `position` counts from 1 over the jobs of everybody; 0: not known. `code` is the engine's own, such as
    `Priority` or `Resources`. `starts_at` is the engine's estimate, None without one.
    """

    position: Whole = 0
    code: Name = ""
    message: Line = ""
    starts_at: UtcSeconds | None = None
    seen_at: UtcSeconds = 0


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node on which an engine runs a workspace, with its devices, such as `a100/0`."""

    node: Annotated[str, Meta(min_length=1, max_length=120)]
    devices: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """State of one workspace as observed by a driver.

    `ready` is set once the app has answered. `endpoint` is the URL at which the gateway reaches the app.
    `code` and `message` explain FAILED and UNKNOWN; `log_tail` holds the last lines of a failed app.

    Engines that place by themselves also report `queue` while it is QUEUED, and then `placed`, `began_at`
    (when its resources were granted) and `ends_at` (when its time limit ends it).
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
    queue: EngineQueue | None = None
    placed: Annotated[tuple[PlacedNode, ...], Meta(max_length=1024)] = ()
    began_at: UtcSeconds | None = None
    ends_at: UtcSeconds | None = None


@dataclass(frozen=True, slots=True)
class Observations:
    """Workspaces of a pool, observed in one call.

    With `complete`, workspaces that are not listed do not exist. Otherwise they have not changed since the
    call's `since`. `cursor` is the `since` of the next call; empty if a driver can only list all.
    """

    listed: Annotated[tuple[Observation, ...], Meta(max_length=100_000)]
    complete: bool
    cursor: Annotated[str, Meta(max_length=200)] = ""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One accelerator in an inventory. `nodes` are the device files that a tenant needs.

    A GPU with `mig_mode` is allocated only by its instances, which are devices of their own: `kind` MIG, with
    `parent_uuid`, `mig_profile` and `mig_start` (-1: not reported). `island` names the NVLink island on its
    node (empty: none), `numa` the NUMA node (-1: unknown), `compute_capability` such as `9.0`. `facts` is
    small JSON for people that changes only with the device; live values are in samples.
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
    """A complete software environment on a node, with the programs that it provides.

    With `folder` it is an existing environment at that path. `python` is its full Python version,
    `package_count` its number of packages; equal `fingerprint`s mean equal Python and packages.
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
    """One host in an inventory.

    `programs` maps each program that a template may start to its path, or to an empty string if it is not
    installed. `limited` lists the resources that are limited per workspace. `warnings` are sentences for the
    operator, each with its fix. `accelerator_state` is `ok`, `no_driver`, `no_gpu`, `driver_mismatch`,
    `gpu_lost`, `reset_required`, `no_permission`, `timeout` or `error` (empty: not reported). `provides` is
    matched with a request's `needs`: `rdma`, `dpu_offload`, `memory_tier:cxl`, `cpu:amx` … `facts` is JSON
    for people, as on a device.
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
    """Nodes and capabilities of a pool, as of `observed_at`.

    The nodes of an engine that places by itself are the places that it offers: one for each of its nodes, and
    its devices are units without a fixed identity. `used_by_others` counts by model the units in use by jobs
    that are not Berth's.
    """

    nodes: Annotated[tuple[NodeInfo, ...], Meta(max_length=100_000)]
    capabilities: frozenset[Capability]
    observed_at: UtcSeconds
    used_by_others: Mapping[Name, Whole] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A `ProvisioningError` as sent to the control plane."""

    code: Name
    message: Text
    retryable: bool
    blame: Word


@dataclass(frozen=True, slots=True)
class Command:
    """One request to a driver. Rejected after `expires_at`; its result carries `lease`.

    `grace_s` applies to STOP and DELETE (`Driver.ensure_stopped`).
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
    """A request to a driver to delete a home permanently, or to continue doing so.

    Rejected after `expires_at`; the answer repeats `deletion` and `lease`.
    """

    deletion: str
    lease: str
    pool: PoolConfig
    team: str
    owner: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class HomeDeleted:
    """The answer to a `HomeDeletion`: `done` if nothing of the home is left, or a failure."""

    deletion: Word
    lease: Word
    done: bool = False
    failure: Failure | None = None


class LeftoverKind(StrEnum):
    """Kind of leftover on a node."""

    WORKSPACE = "workspace"
    PROCESS = "process"
    CONTROL_GROUP = "control_group"
    FOLDER = "folder"
    HOME = "home"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something on a node that has no owner there; `name` identifies it.

    `removed_at` is when the node removed it by itself, 0 while it exists. `size_mib` is None if it was not
    measured.
    """

    kind: LeftoverKind
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    detail: Annotated[str, Meta(max_length=400)] = ""
    size_mib: LargeMib | None = None
    removed_at: Annotated[float, Meta(ge=0, le=1e11)] = 0.0


@dataclass(frozen=True, slots=True)
class LeftoverRemoval:
    """A request to remove a leftover, valid until `expires_at`. The answer repeats `orphan` and `lease`."""

    orphan: str
    lease: str
    pool: PoolConfig
    kind: LeftoverKind
    name: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class LeftoverRemoved:
    """The answer to a `LeftoverRemoval`: `done` if nothing is left (otherwise call again), or a failure."""

    orphan: Word
    lease: Word
    done: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class HomeUsage:
    """Disk usage of a home (`<team>/<owner>`); `hidden` if parts of it could not be read.

    `disk_low`: its disk has less free space than the node's reserve.

    `files` includes folders. `most_files` limits them to a share of the disk's inodes; 0 if there is no
    limit, or if the file system allocates inodes dynamically.
    """

    home: Annotated[str, Meta(max_length=200)]
    used_mib: LargeMib
    hidden: bool = False
    files: LargeCount = 0
    most_files: LargeCount = 0
    disk_low: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a `Command`: an observation or a failure, never both."""

    op: Op
    ref: WorkspaceRef
    lease: str
    observation: Observation | None = None
    failure: Failure | None = None
