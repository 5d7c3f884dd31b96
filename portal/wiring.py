"""Who listens to whom: every call from a room to one above it, which it does not know.

Listeners in the transaction run in the order in which they stand here, and may refuse by raising; those on
commit may not. `portal.common.domain_events` says how.
"""

from __future__ import annotations

from portal.accounts.domain_events import SignedOut, TeamsChanged
from portal.catalog import services as catalog
from portal.common.domain_events import in_transaction, on_commit
from portal.gpu_checks import lost_devices, preflight
from portal.gpu_checks.domain_events import HandOutCheckEnded
from portal.inventory.domain_events import (
    CapacityChanged,
    CapacityFreed,
    DeviceUncordoned,
    InventoryApplied,
    NodesChanged,
    NodeUncordoned,
)
from portal.quotas.domain_events import LimitsChanged
from portal.scheduling import admission, cycle, drains, evictions, snapshot_feed
from portal.scheduling.hints import request_cycle
from portal.workspaces.domain_events import (
    AllocationsReleased,
    PreemptionDue,
    PreflightDue,
    WorkspaceQueued,
    WorkspaceRequested,
    WorkspacesChanged,
    WorkspaceWaits,
)
from portal.workspaces.gateway import publishing


def connect() -> None:
    """Register every listener; once, when Django is ready."""
    # accounts
    in_transaction(SignedOut, publishing.end_sessions)
    in_transaction(TeamsChanged, snapshot_feed.limits_changed)
    # inventory
    in_transaction(InventoryApplied, catalog.offer_accelerators)
    on_commit(InventoryApplied, lost_devices.end_all)
    on_commit(NodeUncordoned, drains.node_uncordoned)
    on_commit(DeviceUncordoned, drains.device_uncordoned)
    in_transaction(CapacityFreed, request_cycle)
    in_transaction(CapacityChanged, snapshot_feed.capacity_changed)
    in_transaction(NodesChanged, snapshot_feed.nodes_changed)
    # workspaces
    in_transaction(WorkspaceRequested, admission.admit)
    in_transaction(WorkspaceQueued, cycle.decide_at_once)
    in_transaction(WorkspaceWaits, request_cycle)
    in_transaction(WorkspacesChanged, snapshot_feed.workspaces_changed)
    in_transaction(PreflightDue, preflight.proceed)
    in_transaction(PreemptionDue, evictions.carry_out)
    in_transaction(AllocationsReleased, preflight.scrub_after)
    # quotas, ledger, reservations
    in_transaction(LimitsChanged, snapshot_feed.limits_changed, request_cycle)
    # gpu_checks
    in_transaction(HandOutCheckEnded, preflight.check_ended)
