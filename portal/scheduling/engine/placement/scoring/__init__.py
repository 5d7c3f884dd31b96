"""Scoring policies, which choose among the nodes that fit. One policy per file, selected by name."""

from __future__ import annotations

from portal.scheduling.engine.placement.arrays import NodeArrays
from portal.scheduling.engine.placement.mix import RequestMix
from portal.scheduling.engine.placement.scoring.base import Policy
from portal.scheduling.engine.placement.scoring.best_fit import BestFit
from portal.scheduling.engine.placement.scoring.fragmentation import Fragmentation
from portal.scheduling.engine.placement.scoring.spread import Spread

DEFAULT_POLICY = Fragmentation.name
POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Fragmentation, BestFit, Spread)}


def policy_named(name: str, nodes: NodeArrays, mix: RequestMix) -> Policy:
    """Return the policy with this name. Raises ValueError, which lists the known names."""
    try:
        kind = POLICIES[name]
    except KeyError:
        raise ValueError(f"no placement policy {name!r}; there are {', '.join(sorted(POLICIES))}") from None
    return kind(nodes, mix)
