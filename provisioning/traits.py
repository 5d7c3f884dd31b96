"""Traits that a driver declares for its pools, so that no other code decides by the driver's name.

Each driver has a module `traits` with a constant `TRAITS`. It imports no code of the driver: the portal reads
traits without loading a driver (`provisioning.registry.traits_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STARTING_OBSERVE_S = 5.0
"""Usual seconds between two observations of a workspace that starts."""


class Plane(StrEnum):
    """Worker that runs a driver's calls. `node`: the node's; `engine`: any worker that reaches the engine."""

    NODE = "node"
    ENGINE = "engine"


class Placing(StrEnum):
    """Who chooses nodes and devices. `berth`: the portal; `engine`: the engine, where workspaces wait."""

    BERTH = "berth"
    ENGINE = "engine"


class HomeStorage(StrEnum):
    """Location of users' homes. `node`: on the disk of each node, within reach of its worker."""

    NODE = "node"
    NONE = "none"


class SoftwareSource(StrEnum):
    """Source of workspaces' programs. `folders`: programs and environments of the node; `none`: nothing."""

    FOLDERS = "folders"
    NONE = "none"


class AppReach(StrEnum):
    """How the portal reaches the app of a workspace. `socket`: a socket of the node; `none`: not at all."""

    SOCKET = "socket"
    NONE = "none"


class DeviceChecks(StrEnum):
    """How devices are checked, scrubbed and reset. `node`: by the node's worker; `none`: not at all."""

    NODE = "node"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of all pools of a driver. `docs/engines.md` shows them."""

    plane: Plane
    placing: Placing = Placing.BERTH
    homes: HomeStorage
    software: SoftwareSource
    reach: AppReach
    device_checks: DeviceChecks
    simulated: bool = False
    """Whether the pools are simulated. They are shown and counted apart from real pools."""
    measured: bool = False
    """Whether nodes send measurements of devices, workspaces and homes."""
    limits_egress: bool = False
    """Whether the driver enforces `WorkspaceSpec.egress` and its pool's `egress`."""
    limits_homes: bool = False
    """Whether the driver enforces `HOME_LIMIT` of its pool's configuration."""
    starting_observe_s: float = STARTING_OBSERVE_S
    """Seconds between two observations of a workspace that starts."""
