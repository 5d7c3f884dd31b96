"""The local driver. All state is on disk and in /proc; instances keep only caches."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from dataclasses import replace
from typing import ClassVar

from provisioning import mounts
from provisioning.drivers.local import (
    bytecode,
    cgroups,
    disk,
    environment,
    file_server,
    generations,
    gpus,
    home_mount,
    host,
    leftovers,
    limits,
    network,
    ownership,
    partitions,
    processes,
    scratch,
    share_guard,
    staging,
    state,
)
from provisioning.drivers.local.failures import (
    disk_errors,
)
from provisioning.drivers.local.home_access import DELETE_HOME_S, LocalHomes
from provisioning.drivers.local.launching import AGENT
from provisioning.drivers.local.log_files import read_log
from provisioning.drivers.local.machine import GVISOR, NAME, NO_GPUS
from provisioning.drivers.local.observation import observe_workspace
from provisioning.drivers.local.share_guard import Shares
from provisioning.drivers.local.spares import SpareKind
from provisioning.drivers.local.start import Settings, checkout_of, launch, start_network
from provisioning.drivers.local.suspending import PROVIDES_SUSPEND, Suspender
from provisioning.drivers.local.takeover import take_over_spare
from provisioning.drivers.local.traits import TRAITS
from provisioning.egress_rules import policy_of
from provisioning.endpoints import socket_endpoint
from provisioning.errors import (
    InvalidSpec,
    ProvisioningError,
)
from provisioning.gpu.scrub import ScrubVerdict
from provisioning.preloading import recipes_among
from provisioning.share_messages import PROVIDES_SHARES
from provisioning.traits import Traits
from provisioning.types import (
    Capability,
    DeviceInfo,
    DeviceKind,
    HomeHold,
    Inventory,
    Leftover,
    LeftoverKind,
    LogPiece,
    MigRepartition,
    Observation,
    ObservedState,
    Placement,
    WorkspaceRef,
    WorkspaceSpec,
)

log = logging.getLogger(__name__)


class LocalDriver(LocalHomes):
    """Runs workspaces as processes of this machine.

    `config` has the following optional settings:

    - `home`: state folder; default $BERTH_HOME or ./var
    - `homes`: home folders of users; default $BERTH_HOMES_DIR or <home>/homes
    - `environment`: default <home>/environments/notebook; without one, programs come from system folders
      and the base of this Python
    - `sandbox`: `auto`, `bwrap`, `gvisor` or `none`
    - `port_min`, `port_max`
    - `spares`: sandboxes kept ready per app that supports preloading; default $BERTH_SPARES or 1
    - `spare_environments`: further environments that get spares; default $BERTH_SPARE_ENVIRONMENTS or 1
    - `egress`: default $BERTH_EGRESS or `open`; `egress_allow`: default $BERTH_EGRESS_ALLOW (`network.py`)
    - `mounts`: default $BERTH_MOUNTS (see `provisioning.mounts`)

    The portal adds `home_limit_mib` (its BERTH_HOME_LIMIT_MIB), which is the same for all pools.
    """

    name: ClassVar[str] = "local"
    traits: ClassVar[Traits] = TRAITS
    # Includes `node` and `homes_shared`, which only the portal reads.
    settings: ClassVar[frozenset[str]] = frozenset((
        "node", "homes_shared", "home", "homes", "environment", "sandbox", "port_min", "port_max", "spares",
        "spare_environments", "egress", "egress_allow", "mounts",
    ))  # fmt: skip

    def validate(self, spec: WorkspaceSpec) -> None:
        """See `Driver.validate`."""
        self._dir(spec.ref)
        request = spec.resources
        if spec.ref.generation < 1:
            raise InvalidSpec("The generation must be 1 or more. Create the workspace again.")
        self._require_home_names(team=spec.team, owner=spec.owner)
        if not spec.app.argv or not spec.app.argv[0]:
            raise InvalidSpec("The template has no start command. Add a start command to the template.")
        for checkout in spec.checkouts:
            checkout_of(checkout)
        if any("\0" in text for text in (*spec.app.argv, *spec.app.env, *spec.app.env.values())):
            raise InvalidSpec(
                "The template's command or variables contain a zero byte. Remove the zero byte."
            )
        if not spec.app.ready_path.startswith("/"):
            raise InvalidSpec("The template's ready path does not begin with “/”. Correct the ready path.")
        if request.nodes != 1:
            raise InvalidSpec("A workspace of this pool runs on one machine. Choose a flavor with 1 node.")
        if request.cpu_milli < 1 or request.memory_mib < 1:
            raise InvalidSpec("The flavor has no CPU or no memory. Choose another flavor.")

    def accepts_endpoint(self, endpoint: str, ref: WorkspaceRef) -> bool:
        """See `Driver.accepts_endpoint`. Accepts only the socket of this generation."""
        return endpoint == socket_endpoint(ref)

    def prepare_host(self) -> None:
        """See `Driver.prepare_host`. Mounts the homes with nosuid and nodev."""
        self._sweep()
        bytecode.make(AGENT.parent)
        try:
            for path in (self.base, self.homes):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            home_mount.secure(self.homes, self.base / home_mount.LOCK)
        except OSError as error:
            log.warning("could not mount %s with nosuid: %s", self.homes, error)

    def release_host(self, *, keep_workspaces: bool) -> int:
        """See `Driver.release_host`. Ends the file servers of homes and unmounts the folder of homes."""
        try:
            return file_server.end_all(self.base)
        finally:
            if not keep_workspaces:
                home_mount.release(self.homes, self.base / home_mount.LOCK)

    def _sweep(self) -> None:
        """Remove probes, egress processes and control groups left by killed processes of this instance."""
        try:
            swept = scratch.sweep(self.base)
            if swept.folders or swept.processes:
                log.info("removed leftovers of killed processes: %s", swept)
                leftovers.note(self.base, leftovers.from_sweep(swept))
            cgroups.sweep_left(self.instance)
        except OSError as error:
            log.warning("could not remove leftovers of killed processes: %s", error)

    def inventory(self) -> Inventory:
        """See `Driver.inventory`."""
        sandbox, warning = self._isolation()
        with disk_errors(self.home):
            self.quotas.store_limit(self.home_limit_mib)
            scan = self._scan()
            node = host.node_info(
                name=self.node_name,
                homes=self.homes,
                readings=self.base,
                environment=environment.resolve(self.environment_path),
                environment_path=self.environment_path,
                isolation=sandbox.level,
                isolation_warning=warning,
                cgroup_host=cgroups.detect(self.instance),
                scan=scan,
                environments=self.environments.environments(),
                programs=environment.parse_names(os.environ.get(environment.VARIABLE) or ""),
                home_limit_mib=self.home_limit_mib,
                home_hold=HomeHold.PROJECT_QUOTA if self.quotas.are_supported() else HomeHold.MEASURED,
            )
        offer = mounts.folder_offer(self.mounts, own=self._own_folders(), sandboxed=bool(sandbox.bwrap))
        node = replace(
            node,
            provides=(*node.provides, *offer.provides),
            warnings=tuple(dict.fromkeys((*node.warnings, *offer.warnings))),
        )
        if self.sandbox_mode == GVISOR and node.devices:
            node = replace(node, devices=(), warnings=(*node.warnings, NO_GPUS))
        if not share_guard.refusal(scan):
            node = replace(node, provides=(*node.provides, PROVIDES_SHARES))
        if node.devices and not self.suspending().refusal(node.driver_version):
            # A property of this node, not of its pool, whose other nodes may differ.
            node = replace(node, provides=(*node.provides, PROVIDES_SUSPEND))
        capabilities = {Capability.WHOLE_GPU, Capability.MULTI_GPU}
        if sandbox.gvisor:
            capabilities.add(Capability.GVISOR)
        if any(device.mig_mode or device.kind is DeviceKind.MIG for device in node.devices):
            capabilities |= {Capability.MIG, Capability.REPARTITION}
        return Inventory((node,), frozenset(capabilities), time.time())

    def ensure_started(self, spec: WorkspaceSpec, placement: Placement) -> Observation:
        """See `Driver.ensure_started`."""
        self.validate(spec)
        node_placement = self._placed_here(placement)
        sandbox, _ = self._isolation()
        self._require_isolation(sandbox)
        self._require_gvisor(sandbox)
        limits.require(cgroups.detect(self.instance), self.home_limit_mib)
        folder = self._dir(spec.ref)
        with disk_errors(self.home, starting=True), folder.operation() as lock:
            observation = generations.check_before_start(folder, spec, self.instance)
            uid = ownership.owner_of(self.base, self.instance, spec, sandbox)
            policy = self._egress_policy(spec)
            if observation is not None:
                if observation.state in generations.STARTED_STATES and not network.complete(
                    folder.path, policy
                ):
                    # its worker was killed before it set up the network
                    settings = self._settings(sandbox, self._own_environment())
                    start_network(folder, replace(settings, uid=uid, egress=policy))
                return observation
            disk.require_room(self.homes)
            self.quotas.store_limit(self.home_limit_mib)
            devices, shares = self._devices(node_placement)
            listed = self.mounts if sandbox.bwrap else ""
            shown_mounts = (
                mounts.mounts_for(spec.mounts, listed, own=self._own_folders()) if spec.mounts else ()
            )
            if uid != state.NODE_USER:
                ownership.require_open(devices)
            with self._environment(spec.environment) as env:
                settings = replace(
                    self._settings(sandbox, env), uid=uid, egress=policy, mounts=shown_mounts, shares=shares
                )
                if not take_over_spare(spec, folder, settings, devices, self.spares):
                    launch(spec, folder, settings, devices, operation_lock=lock)
        return self.observe(spec.ref)

    def warm_up(self, *, owner: int) -> None:
        """See `Driver.warm_up`. Keeps the configured number of spares and restores lost egress processes."""
        sandbox, _ = self._isolation()
        in_gvisor = self.sandbox_mode == GVISOR
        kinds = (
            []
            if in_gvisor
            else [
                SpareKind(recipe.loading(env.preload), env, sandbox)
                for env in (self._own_environment(), *self._environments_in_use())
                for recipe in recipes_among(env.programs())
            ]
        )
        with disk_errors(self.base):
            if sandbox.uids is not None and kinds:
                self.homes.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not staging.can_show_owners(self.homes):
                    kinds = []  # a home cannot be mounted into a running spare
            self.spares.maintain(
                kinds, self.spare_count, owner=owner, cgroup_host=cgroups.detect(self.instance)
            )
            self._sweep()
            for report in self.suspending().recover():
                log.warning(
                    "recovered a workspace that a killed process had left partly suspended: %s", report
                )
            if sandbox.network is not None:
                self._restore_egress(self._settings(sandbox, self._own_environment()))

    def observe(self, ref: WorkspaceRef) -> Observation:
        """See `Driver.observe`."""
        folder = self._dir(ref)
        with disk_errors(self.base):
            return observe_workspace(folder, ref, self.instance)

    def ensure_stopped(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """See `Driver.ensure_stopped`."""
        folder = self._dir(ref)
        with disk_errors(self.base), folder.operation():
            if not generations.close_and_end(folder, ref, self.instance, grace_s=grace_s):
                return generations.still_stopping(folder, ref)
            record = folder.record()
            digest = record.spec_digest if record else ""
            return Observation(ref, ObservedState.STOPPED, spec_digest=digest)

    def ensure_deleted(self, ref: WorkspaceRef, *, grace_s: float | None = None) -> Observation:
        """See `Driver.ensure_deleted`."""
        folder = self._dir(ref)
        with disk_errors(self.base), folder.operation():
            if not generations.close_and_end(folder, ref, self.instance, grace_s=grace_s):
                return generations.still_stopping(folder, ref)
            folder.remove()
            state.prune_closed(self.base, now=time.time())
            cgroups.sweep(cgroups.detect(self.instance))
            return Observation(ref, ObservedState.ABSENT)

    def list_owned(self) -> tuple[Observation, ...]:
        """See `Driver.list_owned`."""
        with disk_errors(self.base):
            claimed = state.claimed(self.base)
            running = {process.workspace for process in processes.scan(self.instance, spares=claimed)}
            names = {name for name in (*state.names(self.base), *running) if NAME.fullmatch(name)}
            observations = [self.observe(WorkspaceRef(str(uuid.UUID(name[3:])), 0)) for name in sorted(names)]
        return tuple(item for item in observations if item.state is not ObservedState.ABSENT)

    def list_leftovers(self) -> tuple[Leftover, ...]:
        """See `Driver.list_leftovers`. First removes and reports leftovers of killed processes."""
        self._sweep()
        with disk_errors(self.base):
            return leftovers.find(self.base, self.homes, self.instance)

    def remove_leftover(self, kind: LeftoverKind, name: str) -> bool:
        """See `Driver.remove_leftover`."""
        with disk_errors(self.homes):
            if kind is not LeftoverKind.HOME:
                return leftovers.remove(
                    self.base, self.homes, self.instance, kind, name, limit_s=DELETE_HOME_S
                )
            team, _, owner = name.partition("/")
            self._require_home_names(team=team, owner=owner)
            leftovers.require_unused_home(self.base, self.instance, name)
        return self.delete_home(team=team, owner=owner)

    def suspending(self) -> Suspender:
        """Return the operations that suspend and resume workspaces of this node."""
        return Suspender(self.base, self.instance)

    def pids(self) -> list[int]:
        """Return the PIDs of all workspaces of this node. Raises `OSError`."""
        claimed = state.claimed(self.base)
        return [process.pid for process in processes.scan(self.instance, spares=claimed)]

    def shares(self) -> Shares:
        """Return the GPU shares of workspaces of this node, and their use."""
        return Shares(self.base, self.instance)

    def logs(self, ref: WorkspaceRef, *, tail_lines: int = 200) -> str:
        """See `Driver.logs`."""
        return self._dir(ref).tail(tail_lines)

    def read_log(
        self, ref: WorkspaceRef, *, after: int | None, tail_lines: int = 200, whole: bool = False
    ) -> LogPiece:
        """See `Driver.read_log`."""
        folder = self._dir(ref)
        record = folder.record()
        if record is None or record.generation != ref.generation:
            return LogPiece("", after or 0)
        return read_log(folder, after=after, tail_lines=tail_lines, whole=whole)

    def repartition_device(self, change: MigRepartition) -> tuple[str, ...]:
        """See `Driver.repartition_device`."""

        def scrub(uuid: str) -> bool:
            return self.scrub_device(uuid).verdict is ScrubVerdict.CLEAN

        def before() -> tuple[DeviceInfo, ...]:
            return gpus.instances_of(gpus.scan(), change.parent_uuid)

        with disk_errors(self.base):
            return partitions.repartition(self.base, change, scrub, before=before)

    def _restore_egress(self, settings: Settings) -> None:
        """Restart the egress processes of workspaces that lost them, for example because pasta was killed."""
        for name in state.names(self.base):
            folder = state.WorkspaceDir(self.base, name)
            record = folder.record()
            if record is None or not record.own_network or record.closed or not folder.alive():
                continue
            policy = policy_of(record.egress, record.egress_allow)
            if folder.operation_held() or network.complete(folder.path, policy):
                continue
            settings = replace(settings, egress=policy)
            with contextlib.suppress(ProvisioningError), folder.operation():
                if folder.record() == record and folder.alive():
                    start_network(folder, settings)
