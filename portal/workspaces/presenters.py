"""Presenters for the pages of workspaces: texts, stages and available actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.common.events.models import Event
from portal.common.formatting import format_memory, format_size
from portal.common.reasons.codes import Rule
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import User
from portal.workspaces import (
    checkout_reports,
    egress,
    engine_queue,
    larger_sizes,
    memory_kills,
    own_packages,
    policies,
    secret_delivery,
    selectors,
    share_overuse,
    stage_lines,
    stops,
)
from portal.workspaces.homes import limits as home_limits
from portal.workspaces.homes import lost as lost_homes
from portal.workspaces.homes import presenters as home_presenters
from portal.workspaces.lifecycle import (
    DELETABLE,
    STARTABLE,
    STOPPABLE,
    TRANSITIONAL,
    QueueOutcome,
    State,
    TerminationReason,
)
from portal.workspaces.models import LostHome, Workspace
from portal.workspaces.problems import is_cut_off, problem_sentence, stored_message
from portal.workspaces.stops import StopCause
from portal.workspaces.wait_texts import WaitText, wait_text
from provisioning import mounts

HOMELESS = frozenset({State.PENDING, State.STOPPED, State.FAILED})
"""States in which a workspace may have to wait because its home is lost."""
STARTING = frozenset({State.PENDING, State.PROVISIONING})
EVENT_TONES = {"ready": "ok", "fail": "bad", "lost": "bad", "cut_off": "bad"}


def stage_text(workspace: Workspace) -> str:
    """Return the current activity of the workspace in a few words."""
    match workspace.state:
        case State.PENDING:
            if workspace.queue_entry.outcome == QueueOutcome.NEEDS_APPROVAL:
                return _("Waiting for approval")
            place = workspace.queue_entry.position
            return (
                _("Position %(place)d in the queue") % {"place": place}
                if place
                else _("Waiting for capacity")
            )
        case State.PROVISIONING if workspace.waits_for_home:
            return _("Moving files")
        case State.PROVISIONING if wait := wait_text(workspace):
            return wait.title
        case State.PROVISIONING if (
            workspace.pool and engine_queue.places(workspace) and not workspace.began_at
        ):
            return _("Handed over to %(pool)s") % {"pool": workspace.pool.name}
        case State.PROVISIONING:
            return (
                _("Starting %(template)s") % {"template": workspace.template.name}
                if workspace.launched_at
                else _("Placed, starting")
            )
        case State.RUNNING:
            if is_cut_off(workspace):
                return _("Machine revoked")
            return _("Will be preempted soon") if workspace.preempting else _("Ready")
        case State.STOPPING:
            return _("Processes are ending")
        case State.STOPPED:
            return _("Your files are kept")
        case State.TERMINATING:
            return _("Releasing resources")
        case State.TERMINATED:
            return _("Resources released")
        case State.FAILED:
            return (
                str(TerminationReason(workspace.termination_reason).label)
                if workspace.termination_reason
                else _("Failed")
            )
    return str(State(workspace.state).label)


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When a queued workspace is expected to start: `at`, or a `text` that explains why this is unknown."""

    at: datetime | None
    text: str
    overdue: bool = False


def expected_start(workspace: Workspace) -> ExpectedStart:
    """Return the queue's estimate. An estimate in the past is not shown."""
    entry = workspace.queue_entry
    if entry.outcome == QueueOutcome.NEEDS_APPROVAL:
        return ExpectedStart(None, _("when approved"))
    if entry.eta_at is None:
        return ExpectedStart(None, _("unknown"))
    if entry.eta_at <= timezone.now():
        return ExpectedStart(None, _("overdue"), overdue=True)
    return ExpectedStart(entry.eta_at, "")


@dataclass(frozen=True, slots=True)
class WorkspaceCard:
    """A workspace in the list, with the actions available to the user."""

    workspace: Workspace
    stage: str
    wait: WaitText | None
    foreign: bool
    can_open: bool
    can_start: bool
    can_stop: bool

    @property
    def counting(self) -> bool:
        """Whether the time next to the stage is still running."""
        return self.workspace.state in TRANSITIONAL

    @property
    def waiting(self) -> bool:
        return self.workspace.state in STARTING

    @property
    def failed(self) -> bool:
        return self.workspace.state == State.FAILED


def cards(actor: User, workspaces: Iterable[Workspace]) -> list[WorkspaceCard]:
    """Return cards for workspaces visible to the actor, with the actions available to them."""
    teams = policies.operated_teams(actor)
    return [
        WorkspaceCard(
            workspace=workspace,
            stage=stage_text(workspace),
            wait=wait_text(workspace),
            foreign=workspace.owner_id != actor.pk,
            can_open=can_open(actor, workspace),
            can_start=operable and workspace.state in STARTABLE,
            can_stop=operable and workspace.state in STOPPABLE,
        )
        for workspace in workspaces
        for operable in [teams is None or workspace.owner_id == actor.pk or workspace.team_id in teams]
    ]


def can_open(actor: User, workspace: Workspace) -> bool:
    return (
        workspace.state == State.RUNNING
        and not workspace.simulated
        and not is_cut_off(workspace)
        and policies.may_open(actor, workspace)
    )


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of one model that the workspace holds on a node."""

    model: str
    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A node of the workspace, and the workspace's devices on it. `url` is empty for an unknown node."""

    node: str
    url: str
    devices: tuple[DeviceGroup, ...]


@dataclass(frozen=True, slots=True)
class EventRow:
    """An entry of the timeline."""

    at: datetime
    actor_name: str
    message: str
    reason: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class WorkspaceDetail:
    """Data of a workspace's page."""

    stage: str
    wait: WaitText | None
    size: str
    stages: list[stage_lines.StageLine]
    total_s: float | None
    places: list[NodeDevices]
    duplicate_url: str
    activity: list[tuple[str, str]]
    home: home_limits.HomeNote | None
    lost_home: LostHome | None
    secrets: secret_delivery.SecretsNote | None
    checkouts: list[checkout_reports.CheckoutRow]
    gpu_shares: list[share_overuse.ShareRow]
    lost_program: memory_kills.LostProgram | None
    larger_size: str
    egress: str
    next_egress: str
    folders: list[tuple[str, bool]]
    environment: str
    uses_home: bool
    reset_waits: bool
    newer_version: int | None
    reason: str
    stopped: StopCause | None
    transient: bool
    starting: bool
    open_now: bool
    has_log: bool
    approval: Any
    problem: str
    waits_for: str
    home_on_its_way: str
    home_move: str
    eta_basis: str
    turn: str
    next_flavor: str
    ask_url: str
    preempting: str
    tries: int
    next_try_at: datetime | None
    operable: bool
    can_open: bool
    can_start: bool
    can_stop: bool
    can_delete: bool

    @property
    def tries_text(self) -> str:
        return "once" if self.tries == 1 else f"{self.tries} times"


def failed_start_count(workspace: Workspace) -> int:
    """Return the number of failed start attempts since the workspace last ran."""
    if workspace.state == State.FAILED:
        return selectors.failed_starts(workspace)
    return workspace.attempts if workspace.state == State.PROVISIONING else 0


def approval_of(workspace: Workspace) -> Any:
    """Return the open request that a queued workspace waits for."""
    if workspace.state != State.PENDING:
        return None
    return workspace.quota_requests.open().first()


ASKABLE = {Rule.TEAM_LIMIT: "quota", Rule.COHORT: "quota", Rule.USER_CAP: "member_cap", Rule.LEDGER: "ledger"}


def ask_url(actor: User, workspace: Workspace) -> str:
    """Return a link to a prefilled quota request for a queued workspace; empty if that would not help."""
    blocker = workspace.queue_entry.blocker
    rule = blocker.get("rule", "")
    if workspace.state != State.PENDING or rule not in ASKABLE or workspace.owner_id != actor.pk:
        return ""
    query = {"team": workspace.team.slug, "kind": ASKABLE[Rule(rule)]}
    if rule != Rule.LEDGER:
        query["resource"] = blocker["resource"]
        query["amount"] = str(max(1, blocker["wanted"] - max(0, blocker["free"])))
    return f"{reverse('quota_requests:ask')}?{urlencode(query)}"


PREEMPTED_FOR = {
    "in_team": "a higher-priority request from the same team",
    "reclaim": "the team that owns the borrowed quota",
    "fair_share": "a team that has borrowed less",
    "booking": "a reservation",
    "drain": "maintenance of the node or GPU",
    "move": "its move to another node",
}


def preempted_for(workspace: Workspace) -> str:
    """Return why a running workspace is being preempted, or an empty string."""
    notice = workspace.preempting
    if notice is None or workspace.state not in {State.PROVISIONING, State.RUNNING}:
        return ""
    return PREEMPTED_FOR.get(notice.cause, "another")


def detail(actor: User, workspace: Workspace, *, opening: bool) -> WorkspaceDetail:
    """Return the data of a workspace's page. With `opening` the page opens the app when it is ready."""
    reach, next_reach = egress.egress_texts(workspace)
    openable = can_open(actor, workspace)
    operable = policies.may_operate(actor, workspace)
    own = policies.uses_home(actor, workspace)
    ready = workspace.ready_at
    stages = [] if workspace.state == State.TERMINATED else selectors.stages(workspace)
    lost = memory_kills.last_report(workspace)
    out_of_memory = workspace.state == State.FAILED and memory_kills.is_out_of_memory(workspace)
    return WorkspaceDetail(
        stage=stage_text(workspace),
        wait=wait_text(workspace),
        size=format_size(workspace.resources),
        stages=stage_lines.lines(stages),
        total_s=(ready - workspace.requested_at).total_seconds() if ready else None,
        places=places(workspace),
        duplicate_url=duplicate_url(actor, workspace),
        activity=activity_facts(workspace),
        home=home_limits.note_of(workspace),
        lost_home=lost_homes.open_lost_home(workspace) if workspace.state in HOMELESS else None,
        secrets=secret_delivery.note_of(workspace),
        checkouts=checkout_reports.note_of(workspace),
        gpu_shares=share_overuse.overuse_rows(workspace, timezone.now()),
        lost_program=lost,
        larger_size=_larger_size(workspace) if operable and (lost or out_of_memory) else "",
        egress=reach,
        next_egress=next_reach,
        folders=[
            (mounts.path_inside(mount), mount.endswith(mounts.WRITABLE))
            for mount in workspace.template.mounts
        ],
        environment=_environment_text(workspace),
        uses_home=workspace.state != State.TERMINATED and not workspace.simulated and own,
        reset_waits=own and own_packages.reset_waits(workspace),
        newer_version=newer_version(workspace),
        reason=str(TerminationReason(workspace.termination_reason).label)
        if workspace.termination_reason
        else _("Failed"),
        stopped=stops.cause_of(workspace.status.stopped)
        if workspace.state in (State.STOPPING, State.STOPPED)
        else None,
        transient=workspace.state in TRANSITIONAL,
        starting=workspace.state in STARTING,
        open_now=opening and openable,
        has_log=workspace.generation > 0 and not workspace.simulated and workspace.state != State.TERMINATED,
        approval=approval_of(workspace),
        problem=_shown_problem(workspace),
        waits_for=stored_message(workspace.queue_entry.reason),
        home_on_its_way=home_presenters.move_waited_for(workspace),
        home_move=home_presenters.move_with_start(workspace),
        eta_basis=stored_message(workspace.queue_entry.eta_basis),
        turn=stored_message(workspace.queue_entry.member_order),
        next_flavor=stored_message(workspace.queue_entry.next_flavor),
        ask_url=ask_url(actor, workspace),
        preempting=preempted_for(workspace),
        tries=failed_start_count(workspace),
        next_try_at=workspace.next_reconcile_at if workspace.state == State.PROVISIONING else None,
        operable=operable,
        can_open=openable,
        can_start=operable and workspace.state in STARTABLE,
        can_stop=operable and workspace.state in STOPPABLE,
        can_delete=operable and workspace.state in DELETABLE,
    )


def _larger_size(workspace: Workspace) -> str:
    """Return the name and size of the next larger flavor that would start now, or an empty string."""
    flavor = larger_sizes.next_larger(workspace)
    return larger_sizes.title_of(flavor) if flavor is not None else ""


def _shown_problem(workspace: Workspace) -> str:
    """Return the problem shown on the page. Hides short silences of a running workspace's node."""
    hidden = workspace.state == State.RUNNING and not is_cut_off(workspace)
    return "" if hidden or workspace.state == State.TERMINATED else problem_sentence(workspace)


def _environment_text(workspace: Workspace) -> str:
    """Return the environment and version as text, or an empty string for the software of the node."""
    version = workspace.environment_version
    if version is None:
        return ""
    return _("%(name)s, version %(number)d") % {"name": version.environment.name, "number": version.number}


def newer_version(workspace: Workspace) -> int | None:
    """Return the environment version that a new workspace would get, if it differs."""
    version = workspace.environment_version
    if version is None or version.environment.current_id in (None, version.pk):
        return None
    return selectors.current_number(version.environment_id)


def duplicate_url(actor: User, workspace: Workspace) -> str:
    """Return the URL of a new workspace form with the same choices; empty unless the actor is the owner."""
    if workspace.owner_id != actor.pk or actor.only_views:
        return ""
    choice = {name: getattr(workspace, name).slug for name in ("template", "flavor", "team")}
    if workspace.environment_version is not None:
        choice["environment"] = workspace.environment_version.environment.slug
    return f"{reverse('home:new')}?{urlencode(choice)}"


def places(workspace: Workspace) -> list[NodeDevices]:
    """Return the nodes of the workspace; empty after its capacity was released.

    If its engine places, these are the nodes that the engine chose; empty while the workspace waits there.
    """
    if engine_queue.places(workspace):
        return _engine_places(workspace)
    allocations = (
        workspace.allocations.filter(released_at=None)
        .select_related("node")
        .prefetch_related("devices__device")
        .order_by("node__name")
    )
    node_devices: list[NodeDevices] = []
    for allocation in allocations:
        models: dict[str, list[str]] = {}
        for item in sorted(allocation.devices.all(), key=lambda item: item.device.index):
            models.setdefault(item.device.model, []).append(item.device.uuid)
        groups = tuple(DeviceGroup(model, tuple(uuids)) for model, uuids in models.items())
        url = reverse("fleet:node", args=[allocation.node_id])
        node_devices.append(NodeDevices(allocation.node.name, url, groups))
    return node_devices


def _engine_places(workspace: Workspace) -> list[NodeDevices]:
    placed = engine_queue.place_of(workspace)
    nodes = Node.objects.filter(pool=workspace.pool, name__in=[part.node for part in placed])
    known = dict(nodes.values_list("name", "pk"))
    node_devices = []
    for part in placed:
        types: dict[str, list[str]] = {}
        for name in part.devices:
            # The engine names devices by type and index, such as `h100/3`.
            types.setdefault(name.rpartition("/")[0] or _("accelerators"), []).append(name)
        url = reverse("fleet:node", args=[known[part.node]]) if part.node in known else ""
        groups = tuple(DeviceGroup(type_, tuple(names)) for type_, names in types.items())
        node_devices.append(NodeDevices(part.node, url, groups))
    return node_devices


def activity_facts(workspace: Workspace) -> list[tuple[str, str]]:
    """Return the measured figures of the last heartbeat as names and values."""
    if workspace.state != State.RUNNING:
        return []
    seen = workspace.status.activity or {}
    facts: list[tuple[str, str]] = []
    for key, name in (("kernels", _("Kernels")), ("terminals", _("Terminals"))):
        group = seen.get(key)
        if isinstance(group, dict) and isinstance(group.get("count"), int):
            busy = group.get("busy")
            more = _(", %(count)d busy") % {"count": busy} if isinstance(busy, int) and busy else ""
            facts.append((name, f"{group['count']}{more}"))
    for key, name in (("connections", _("Connections")), ("processes", _("Processes"))):
        if isinstance(seen.get(key), int):
            facts.append((name, str(seen[key])))
    if isinstance(seen.get("rss_mib"), int):
        facts.append((_("Memory used"), format_memory(seen["rss_mib"])))
    if isinstance(seen.get("gpus_stale_s"), int):
        silent = _("no response from the driver for %(count)d s") % {"count": seen["gpus_stale_s"]}
        facts.append((_("GPUs"), silent))
    return facts


def event_rows(events: Sequence[Event]) -> list[EventRow]:
    """Return the timeline's entries."""
    rows = []
    for event in events:
        tone = EVENT_TONES.get(event.kind.rpartition(".")[2], "")
        rows.append(
            EventRow(
                at=event.at, actor_name=event.actor_label, message=event.message, reason=event.why, tone=tone
            )
        )
    return rows
