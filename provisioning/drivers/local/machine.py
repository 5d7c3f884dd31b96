"""The machine under the local driver: folders, sandbox, network policy and GPUs."""

from __future__ import annotations

import functools
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

from provisioning import mounts
from provisioning.driver import Driver
from provisioning.drivers.local import disk, gpus, home_mount, limits, partitions, share_guard, state
from provisioning.drivers.local.failures import IsolationRequired, WrongNode
from provisioning.drivers.local.home_quota import HomeQuotas
from provisioning.drivers.local.isolation import SandboxProbe, probe
from provisioning.drivers.local.sandbox import USER_NAME
from provisioning.egress_rules import EgressPolicy, policy_of, tightest
from provisioning.errors import InvalidSpec, MissingDependency, NoCapacity
from provisioning.types import (
    DeviceInfo,
    NodePlacement,
    Placement,
    PoolConfig,
    WorkspaceRef,
    WorkspaceSpec,
    external_name,
)

NAME = re.compile(r"ws-[0-9a-f]{32}")
GVISOR = "gvisor"
"""The value of `sandbox` for pools that run workspaces in gVisor only."""
NO_GPUS = "Workspaces in gVisor cannot use GPUs. Choose a flavor without GPUs, or a pool without gVisor."


class LocalMachine(Driver):
    """Settings of the pool and the node, and abilities of this machine. Base class of the other parts."""

    def __init__(self, pool: PoolConfig) -> None:
        super().__init__(pool)
        config = pool.config
        home = Path(str(config.get("home") or os.environ.get("BERTH_HOME") or "var"))
        self.home = Path(os.path.realpath(home))
        self.base = self.home / "local"
        self.homes = home_mount.homes_dir(config, self.home)
        self.sandbox_mode = str(config.get("sandbox") or "auto")
        self.port_min = int(config.get("port_min") or 18000)
        self.port_max = int(config.get("port_max") or 28999)
        self.instance = state.instance_of(self.home)
        egress = config.get("egress") or os.environ.get("BERTH_EGRESS") or "open"
        allowed = config.get("egress_allow") or os.environ.get("BERTH_EGRESS_ALLOW") or ""
        self.egress = policy_of(str(egress), str(allowed))
        self.mounts = str(config.get("mounts") or os.environ.get(mounts.VARIABLE) or "")
        self.home_limit_mib = disk.home_limit_mib(config)
        self.quotas = HomeQuotas(self.base, self.homes)
        self.node_name = os.environ.get("BERTH_NODE_NAME") or socket.gethostname()

    def _dir(self, ref: WorkspaceRef) -> state.WorkspaceDir:
        name = external_name(ref.workspace_id)
        if not NAME.fullmatch(name):
            raise InvalidSpec("The workspace's ID is not a UUID. Create the workspace again.")
        return state.WorkspaceDir(self.base, name)

    def _require_home_names(self, **names: str) -> None:
        for role, value in names.items():
            if not USER_NAME.fullmatch(value):
                raise InvalidSpec(
                    f"“{value}” is not a valid folder name for homes. "
                    f"Rename the {role}, using only letters, digits and . _ @ + -."
                )

    def sandbox(self) -> SandboxProbe:
        """Return the sandbox of workspaces and builds on this node. Raises `InvalidSpec`."""
        return self._isolation()[0]

    def _isolation(self) -> tuple[SandboxProbe, str]:
        """Return the sandbox to use and a warning; the warning is empty if there is none."""
        if self.sandbox_mode not in ("auto", "bwrap", GVISOR, "none"):
            raise InvalidSpec(
                f"sandbox={self.sandbox_mode} is not valid. Choose auto, bwrap, gvisor or none."
            )
        if self.sandbox_mode == "none":
            sandbox = SandboxProbe("", reason="Workspaces are not isolated. Set sandbox=auto for this pool.")
        else:
            sandbox = probe(self.base)
        if self.sandbox_mode != GVISOR:
            return sandbox, sandbox.warning
        sandbox = replace(sandbox, runsc=sandbox.gvisor)
        return sandbox, " ".join(filter(None, (sandbox.no_gvisor, sandbox.warning)))

    def _require_isolation(self, sandbox: SandboxProbe) -> None:
        if limits.several_users() and sandbox.warning:
            raise IsolationRequired(
                "Several users share this machine, so workspaces need a sandbox with a separate network and "
                f"a filter of system calls. {sandbox.warning}"
            )
        if sandbox.bwrap:
            return
        if self.sandbox_mode in ("bwrap", GVISOR):
            raise MissingDependency(sandbox.reason)

    def _require_gvisor(self, sandbox: SandboxProbe) -> None:
        """Raise `MissingDependency` if this pool requires gVisor and it is unavailable."""
        if self.sandbox_mode == GVISOR and (problem := sandbox.no_gvisor):
            raise MissingDependency(problem)

    def _own_folders(self) -> tuple[Path, ...]:
        """Return the folders of Berth's state and of homes, which are hidden from workspaces."""
        return (self.home, self.homes)

    def _placed_here(self, placement: Placement) -> NodePlacement:
        if len(placement.nodes) != 1 or placement.nodes[0].node != self.node_name:
            names = ", ".join(node.node for node in placement.nodes) or "no node"
            raise WrongNode(
                f"The workspace was placed on {names}, but this node is {self.node_name}. "
                "Start the workspace again."
            )
        return placement.nodes[0]

    def _egress_policy(self, spec: WorkspaceSpec) -> EgressPolicy:
        """Return the workspace's egress policy, the strictest of all that apply. Raises `InvalidSpec`."""
        limits = (policy_of(limit.egress, limit.allow) for limit in spec.egress)
        return functools.reduce(tightest, limits, self.egress)

    def _scan(self) -> gpus.GpuScan:
        """Return the GPUs, never during a layout change. First finishes one left by a killed worker."""
        partitions.recover(self.base)
        while True:
            before = partitions.repartitioned_gpus(self.base)
            with partitions.layouts_locked(self.base) as busy:
                scan = gpus.scan()
            if partitions.repartitioned_gpus(self.base) == before:
                return gpus.with_instances(scan, busy)

    def _devices(
        self, node_placement: NodePlacement
    ) -> tuple[tuple[DeviceInfo, ...], tuple[state.GpuShare, ...]]:
        """Return the granted devices in their current state, and the shares. Raises `NoCapacity`."""
        if not node_placement.devices:
            return (), ()
        if self.sandbox_mode == GVISOR:
            raise NoCapacity(NO_GPUS)
        scan = gpus.scan()
        granted = gpus.granted(scan, node_placement.devices)
        return granted, share_guard.granted_shares(scan, node_placement.devices, granted)
