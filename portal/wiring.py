"""Connects apps to apps above them, which they do not import.

Ports are questions whose answer may be a refusal (`portal.common.ports`). Domain events are facts
(`portal.common.domain_events`); listeners in the transaction run in the order of this file.
"""

from __future__ import annotations

from portal.catalog import entries
from portal.catalog import services as catalog
from portal.catalog.deletion_policy import deletion_policy as entry_deletion
from portal.catalog.domain_events import EntryChanged, EntryDeleted
from portal.catalog.environments.domain_events import BuildsChanged, VersionReady
from portal.catalog.selectors import OffersByFlavor
from portal.celery import ask_directory
from portal.common import encrypted_fields, idempotency, ports
from portal.common.domain_events import in_transaction, on_commit
from portal.common.encrypted_fields import SealedColumn
from portal.common.events.domain_events import NoticesWritten
from portal.fleet.inventory.deletion_policy import deletion_policy as pool_deletion
from portal.fleet.inventory.device_holders import device_holders
from portal.fleet.inventory.domain_events import (
    CapacityChanged,
    CapacityFreed,
    DeviceUncordoned,
    InventoryApplied,
    NodeForgotten,
    NodesChanged,
    NodeUncordoned,
    PoolDeleted,
)
from portal.fleet.inventory.offered_pools import pool_offers
from portal.fleet.machines import keys as machines
from portal.fleet.machines.domain_events import MachineEnded, MachineLeaving
from portal.fleet.machines.removal_policy import removal_policy
from portal.gpu_checks import lost_devices, preflight, results
from portal.gpu_checks.domain_events import PreflightCheckEnded
from portal.notify.channels import outbox as channels
from portal.notify.channels.models import Channel
from portal.notify.channels.services import URL as CHANNEL_URL
from portal.notify.channels.services import delete_all_of as delete_channels
from portal.notify.channels.services import delete_all_of_team as delete_channels_of_team
from portal.notify.webhooks.models import Endpoint
from portal.notify.webhooks.services import SECRET as WEBHOOK_SECRET
from portal.notify.webhooks.services import delete_all_of_team as delete_webhooks_of_team
from portal.people.accounts.deletion_policy import deletion_policy as account_deletion
from portal.people.accounts.domain_events import (
    MemberSet,
    MembershipRevoked,
    SignedOut,
    TeamArchived,
    TeamDeleted,
    TeamDeletion,
    TeamDeletionStarted,
    TeamsChanged,
    UserDeactivated,
    UserDeleted,
    UserReactivated,
)
from portal.people.accounts.team_contents import team_contents
from portal.people.identity import services as identity
from portal.people.join_requests import services as join_requests
from portal.people.scim import services as scim
from portal.quota.ledger import services as ledger
from portal.quota.ledger.domain_events import BudgetChanged
from portal.quota.limits.domain_events import LimitsChanged
from portal.quota.limits.services import limits
from portal.quota.requests.services import requests, rules
from portal.quota.reservations import permissions
from portal.quota.reservations import services as reservations
from portal.reclaim import extensions, scheduled_starts
from portal.reclaim import policy_services as reclaim_policies
from portal.reports import budgets as reported_budgets
from portal.reports import days, month_sums, start_counts
from portal.reports.team_contents import ContentsOfTeam
from portal.scheduling import cycle, drains, evictions, forecasts, queue_admission, snapshot_feed
from portal.scheduling.hints import request_cycle
from portal.web.inbox import pushing
from portal.workspaces import (
    deletion_policies,
    machine_losses,
    machine_removal,
    notices,
    software,
    team_deletions,
)
from portal.workspaces import services as workspaces
from portal.workspaces.admission_policy import admission_policy
from portal.workspaces.device_holders import HoldersByAllocation
from portal.workspaces.domain_events import (
    AllocationsReleased,
    EndpointChanged,
    EngineRequeued,
    HomeMoveDue,
    HomeMoveEnded,
    HomesChanged,
    HomesMeasured,
    PreemptionDue,
    PreflightDue,
    RequestChanged,
    StateChanged,
    StopRequested,
    UnknownWorkspacesReported,
    WorkspaceExtended,
    WorkspaceFailed,
    WorkspaceQueued,
    WorkspaceReady,
    WorkspaceRequested,
    WorkspaceWaits,
)
from portal.workspaces.extension_policy import extension_policy
from portal.workspaces.gateway import publishing
from portal.workspaces.homes import deletions, start_moves
from portal.workspaces.homes import lost as lost_homes
from portal.workspaces.orphans import services as orphans
from portal.workspaces.secrets.models import Secret, purpose_of
from portal.workspaces.secrets.services import delete_all_of as delete_secrets
from portal.workspaces.secrets.services import delete_all_of_team as delete_secrets_of_team
from portal.workspaces.secrets.services import delete_with_template
from portal.workspaces.start_forecasts import start_forecasts

SEALED = [
    idempotency.SEALED,
    SealedColumn(Channel, "url", lambda _row: CHANNEL_URL),
    SealedColumn(Endpoint, "secret", lambda _row: WEBHOOK_SECRET),
    SealedColumn(Endpoint, "previous_secret", lambda _row: WEBHOOK_SECRET),
    SealedColumn(Secret, "sealed", purpose_of),
]
"""All columns that `encrypted_fields` encrypts. Second factors have a cipher of their own."""


def connect() -> None:
    """Connect every port and register every listener. Called once, when Django is ready.

    Raises `ImproperlyConfigured` for a port without an implementation.
    """
    encrypted_fields.COLUMNS[:] = SEALED
    ask_directory(machines.directory)
    account_deletion.connect(deletion_policies.KeepAccountsWithWorkspaces())
    team_contents.connect(ContentsOfTeam())
    pool_deletion.connect(entries.KeepPoolsOfFlavorsInUse())
    device_holders.connect(HoldersByAllocation())
    pool_offers.connect(OffersByFlavor())
    removal_policy.connect(machine_removal.KeepMachinesWithHomes())
    entry_deletion.connect(deletion_policies.KeepEntriesInUse())
    admission_policy.connect(queue_admission.QueueAdmission())
    start_forecasts.connect(forecasts.AdmissionForecasts())
    extension_policy.connect(extensions.LimitExtensions())
    ports.require_connected()
    # events
    in_transaction(NoticesWritten, channels.notices_written)
    # accounts
    on_commit(SignedOut, publishing.end_sessions)
    # Requests are handled before the workspaces that wait for them.
    in_transaction(
        UserDeactivated,
        join_requests.cancel_all_of,
        requests.cancel_all_of,
        reservations.release_reservations_of_user,
        workspaces.stop_all_of,
    )
    on_commit(UserDeactivated, publishing.end_access)
    in_transaction(UserReactivated, scim.reactivated)
    in_transaction(MembershipRevoked, workspaces.stop_all_in_team)
    in_transaction(
        UserDeleted, workspaces.delete_all_of, deletions.account_deleted, delete_channels, delete_secrets
    )
    in_transaction(MemberSet, join_requests.member_set)
    # Requests are handled before the workspaces that wait for them.
    in_transaction(
        TeamArchived,
        join_requests.team_archived,
        requests.cancel_all_in_team,
        reservations.cancel_all_in_team,
        workspaces.stop_all_of_team,
    )
    team_deletion_events: tuple[type[TeamDeletion], ...] = (TeamDeletionStarted, TeamDeleted)
    for deletion in team_deletion_events:
        in_transaction(
            deletion,
            identity.team_deleted,
            delete_webhooks_of_team,
            delete_channels_of_team,
            delete_secrets_of_team,
            entries.team_deleted,
            limits.team_deleted,
            ledger.team_deleted,
            rules.team_deleted,
            permissions.team_deleted,
            reclaim_policies.team_deleted,
        )
    in_transaction(
        TeamDeletionStarted,
        join_requests.team_archived,
        requests.cancel_all_in_team,
        reservations.cancel_all_in_team,
        workspaces.delete_all_of_team,
        deletions.team_deletion_started,
        snapshot_feed.limits_changed,
        team_deletions.team_deletion_started,
    )
    in_transaction(TeamDeleted, deletions.team_deleted, days.team_deleted, month_sums.team_deleted)
    in_transaction(TeamsChanged, snapshot_feed.limits_changed)
    # inventory
    in_transaction(InventoryApplied, catalog.offer_accelerators)
    on_commit(InventoryApplied, lost_devices.end_all, results.inventory_applied)
    on_commit(NodeUncordoned, drains.node_uncordoned)
    on_commit(DeviceUncordoned, drains.device_uncordoned)
    in_transaction(NodeForgotten, lost_homes.node_forgotten)
    in_transaction(CapacityFreed, request_cycle)
    in_transaction(CapacityChanged, snapshot_feed.capacity_changed)
    on_commit(CapacityChanged, pushing.capacity_changed)
    in_transaction(NodesChanged, snapshot_feed.nodes_changed)
    on_commit(NodesChanged, pushing.capacity_changed)
    on_commit(MachineEnded, publishing.machine_ended)
    on_commit(MachineEnded, machine_losses.machine_ended)
    on_commit(MachineLeaving, drains.drain_leaving_machine)
    # catalog
    in_transaction(PoolDeleted, entries.pool_deleted)
    in_transaction(EntryDeleted, delete_with_template)
    in_transaction(EntryChanged, snapshot_feed.catalog_changed, request_cycle)
    # environments
    in_transaction(VersionReady, software.version_ready)
    on_commit(BuildsChanged, request_cycle)
    # workspaces
    in_transaction(HomesMeasured, orphans.homes_measured)
    in_transaction(HomesChanged, snapshot_feed.nodes_changed)
    in_transaction(UnknownWorkspacesReported, orphans.unknown_workspaces_reported)
    in_transaction(WorkspaceRequested, start_counts.count_request)
    in_transaction(WorkspaceQueued, cycle.decide_at_once)
    in_transaction(WorkspaceWaits, request_cycle)
    in_transaction(StateChanged, snapshot_feed.state_changed, start_counts.count_starts)
    on_commit(StateChanged, publishing.state_changed)
    in_transaction(RequestChanged, snapshot_feed.request_changed)
    in_transaction(StopRequested, scheduled_starts.cancel_scheduled_start)
    in_transaction(WorkspaceExtended, extensions.workspace_extended)
    on_commit(EndpointChanged, publishing.endpoint_changed)
    in_transaction(WorkspaceReady, notices.notify_ready, start_counts.count_ready)
    in_transaction(WorkspaceFailed, notices.notify_failure, start_counts.count_failure)
    in_transaction(EngineRequeued, notices.notify_requeue)
    in_transaction(PreflightDue, preflight.handle_deadline)
    in_transaction(HomeMoveDue, start_moves.handle_due)
    in_transaction(HomeMoveEnded, start_moves.move_ended)
    in_transaction(PreemptionDue, evictions.evict)
    in_transaction(AllocationsReleased, preflight.scrub_after)
    # quotas, ledger, reservations
    in_transaction(LimitsChanged, snapshot_feed.limits_changed, request_cycle)
    in_transaction(BudgetChanged, reported_budgets.budget_changed)
    # gpu_checks
    in_transaction(PreflightCheckEnded, preflight.check_ended)
