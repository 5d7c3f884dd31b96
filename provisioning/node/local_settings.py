"""Pool settings that this node decides itself, whatever a message says.

`BERTH_HOME`, `BERTH_HOMES_DIR`, the notebook environment, `BERTH_SANDBOX`, `BERTH_EGRESS`,
`BERTH_EGRESS_ALLOW` and `BERTH_MOUNTS` are settings of the node. A pool's configuration can only request
stricter isolation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from provisioning import mounts, registry
from provisioning.driver import Driver
from provisioning.egress_rules import FROM_LOOSEST, EgressPolicy, names_host, policy_of, reachable
from provisioning.errors import InvalidSpec
from provisioning.types import JsonScalar, PoolConfig

LOCAL = "local"
SANDBOXES = ("none", "auto", "bwrap", "gvisor")
"""From least to most strict."""


def driver_for(pool: PoolConfig) -> Driver:
    """Return the driver of the pool in a message, within this node's settings.

    Raises `ProvisioningError`.
    """
    return registry.driver_for(apply_local_settings(pool, os.environ))


def apply_local_settings(pool: PoolConfig, environ: Mapping[str, str]) -> PoolConfig:
    """Return the pool with this node's settings. Raises `InvalidSpec`, with the fix, for looser ones."""
    if pool.driver != LOCAL:
        return pool
    home = os.path.realpath(environ.get("BERTH_HOME") or "var")
    environment = environ.get("BERTH_NODE_ENVIRONMENT") or str(Path(home) / "environments" / "notebook")
    homes = os.path.realpath(environ.get("BERTH_HOMES_DIR") or Path(home) / "homes")
    _require_same_folder(pool.config, "home", home, "BERTH_HOME")
    _require_same_folder(pool.config, "homes", homes, "BERTH_HOMES_DIR")
    _require_same_folder(pool.config, "environment", environment, "BERTH_NODE_ENVIRONMENT")
    if pool.config.get("mounts"):
        raise InvalidSpec(
            "The pool sets mounts, which only nodes can set. Remove mounts from the pool's configuration, "
            f"and set {mounts.VARIABLE} on the node."
        )
    policy = _egress_of(pool.config, environ)
    return replace(
        pool,
        config={
            **pool.config,
            "home": home,
            "homes": homes,
            "environment": environment,
            "sandbox": _sandbox_of(pool.config, environ),
            "egress": policy.egress.value,
            "egress_allow": policy.as_text(),
            "mounts": environ.get(mounts.VARIABLE) or "",
        },
    )


def _require_same_folder(config: Mapping[str, JsonScalar], name: str, own: str, variable: str) -> None:
    folder = config.get(name)
    if folder and os.path.realpath(str(folder)) != os.path.realpath(own):
        raise InvalidSpec(
            f"The pool and its node have different folders for {name}. Remove {name} from the pool's "
            f"configuration, and set {variable} on the node."
        )


def _sandbox_of(config: Mapping[str, JsonScalar], environ: Mapping[str, str]) -> str:
    floor = environ.get("BERTH_SANDBOX") or "auto"
    requested = str(config.get("sandbox") or floor)
    for value, where in ((floor, "BERTH_SANDBOX"), (requested, "sandbox")):
        if value not in SANDBOXES:
            raise InvalidSpec(f"{where}={value} is not valid. Choose auto, bwrap, gvisor or none.")
    if requested == "none" != floor:
        raise InvalidSpec(
            "The pool sets sandbox=none, which this node does not allow. Remove sandbox from the pool's "
            "configuration, or set BERTH_SANDBOX=none on the node."
        )
    return max(floor, requested, key=SANDBOXES.index)


def _egress_of(config: Mapping[str, JsonScalar], environ: Mapping[str, str]) -> EgressPolicy:
    floor = policy_of(environ.get("BERTH_EGRESS") or "open", environ.get("BERTH_EGRESS_ALLOW") or "")
    requested = policy_of(
        str(config.get("egress") or floor.egress.value), str(config.get("egress_allow") or "")
    )
    egress = max(floor.egress, requested.egress, key=FROM_LOOSEST.index)
    if egress is not requested.egress:
        # The pool's own list was made for a less strict node: only the node's list applies.
        return floor
    if not config.get("egress_allow"):
        return EgressPolicy(egress, floor.allowed, floor.hosts)
    refused = [str(network) for network in requested.allowed if not reachable(network, floor)]
    refused += [str(rule) for rule in requested.hosts if not names_host(rule, floor)]
    if refused:
        raise InvalidSpec(
            f"The pool's egress_allow has {refused[0]}, which this node does not allow. Remove {refused[0]} "
            "from the pool's configuration, or add it to BERTH_EGRESS_ALLOW on the node."
        )
    return EgressPolicy(egress, requested.allowed, requested.hosts)
