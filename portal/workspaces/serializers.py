"""Workspaces, their events and verdicts as the API shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog.serializers import ResourcesSerializer
from portal.common.api import StrictSerializer
from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.common.representation import stamp
from portal.events.models import Event
from portal.inventory.models import AllocatedDevice, Allocation
from portal.workspaces import selectors
from portal.workspaces.lifecycle import DesiredState, State, TerminationReason
from portal.workspaces.models import Workspace
from portal.workspaces.troubles import error_code_of


def with_held(workspaces: QuerySet[Workspace]) -> QuerySet[Workspace]:
    """Load what each workspace holds too, in two queries however many there are."""
    devices = AllocatedDevice.objects.select_related("device").order_by("device__index")
    held = (
        Allocation.objects.filter(released_at=None)
        .select_related("node")
        .prefetch_related(Prefetch("devices", devices))
        .order_by("node__name")
    )
    return workspaces.prefetch_related(Prefetch("allocations", held, to_attr="held"))


class WorkspaceCreateSerializer(StrictSerializer):
    """A request for a workspace; all by short name."""

    name = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=60,
        help_text="Lower-case letters, digits and hyphens. Without it, one is chosen.",
    )
    team = serializers.CharField(
        required=False, max_length=40, help_text="May be left out where you have just one team."
    )
    template = serializers.CharField(max_length=81)
    flavor = serializers.CharField(max_length=60)
    expected_hours = serializers.FloatField(
        required=False,
        min_value=1 / 60,
        max_value=720,
        help_text="How long you will need it: estimates rest on it, and short ones may overtake.",
    )
    priority = serializers.IntegerField(
        required=False,
        min_value=-100,
        max_value=100,
        default=0,
        help_text="Above 0 for owners of the team and operators only.",
    )
    checkpointed = serializers.BooleanField(
        required=False,
        allow_null=True,
        default=None,
        help_text=(
            "Whether its work goes on from a checkpoint if it has to make room and comes back. "
            "Without it, what the template and flavor say is taken."
        ),
    )
    environment = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=40,
        help_text="Short name of the software environment; without it, the template's.",
    )
    secrets = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=50,
        default=list,
        help_text="Names of your secrets and the team's that it gets beside those that come by themselves.",
    )


class ErrorSerializer(serializers.Serializer[Any]):
    """Why it waits, or why it failed."""

    code = serializers.CharField()
    message = serializers.CharField()


class StageSerializer(serializers.Serializer[Any]):
    """A step on the way to a usable workspace, and how long it took or has been taking."""

    key = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    state = serializers.ChoiceField(["done", "current", "failed", "todo"])
    began_at = serializers.DateTimeField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)


class HeldDeviceSerializer(serializers.Serializer[Any]):
    """An accelerator that the workspace holds, or a share of it in thousandths."""

    uuid = serializers.CharField(source="device.uuid")
    model = serializers.CharField(source="device.model")
    memory_mib = serializers.IntegerField(source="device.memory_mib")
    milli = serializers.IntegerField()


class QueueSerializer(serializers.Serializer[Any]):
    """How a waiting workspace stands."""

    outcome = serializers.CharField(
        allow_blank=True, help_text="`queued`, `needs_approval`, or not decided yet."
    )
    position = serializers.IntegerField(allow_null=True)
    eta = serializers.DateTimeField(allow_null=True)
    eta_basis = serializers.CharField(allow_blank=True)
    rule = serializers.CharField(allow_blank=True)
    resource = serializers.CharField(allow_blank=True)


class LeavingSerializer(serializers.Serializer[Any]):
    """By when a running workspace has to make room, and why."""

    at = serializers.DateTimeField()
    reason = serializers.CharField()


class WorkspaceSerializer(serializers.ModelSerializer[Workspace]):
    """A workspace. Its `url` opens in the browser of its user, or with a bearer token of theirs."""

    state = serializers.ChoiceField(State.choices)
    wanted = serializers.ChoiceField(DesiredState.choices, source="desired_state")
    reason = serializers.ChoiceField(
        TerminationReason.choices, source="termination_reason", help_text="Why it ended, or empty."
    )
    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    template = serializers.CharField(source="template.slug")
    flavor = serializers.CharField(source="flavor.slug")
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    url = serializers.SerializerMethodField(help_text="The workspace's own origin and its first page.")
    portal_url = serializers.SerializerMethodField(help_text="Its page in the portal.")
    simulated = serializers.BooleanField(help_text="Whether nothing real runs behind it.")
    error = serializers.SerializerMethodField()
    resources = ResourcesSerializer()
    nodes = serializers.SerializerMethodField(help_text="Names of the nodes that it is on.")
    devices = serializers.SerializerMethodField()
    stages = serializers.SerializerMethodField()
    queue = serializers.SerializerMethodField(help_text="How it stands while it waits, or null.")
    leaving = serializers.SerializerMethodField(help_text="That it has to make room, or null.")
    expected_hours = serializers.SerializerMethodField(help_text="How long it is expected to run.")
    activity = serializers.DictField(source="status.activity", help_text="What its agent saw last.")
    heartbeat_at = serializers.DateTimeField(source="status.heartbeat_at", allow_null=True)
    environment = serializers.CharField(
        allow_null=True,
        default=None,
        help_text="Short name of its software environment; null for what its node has by itself.",
    )
    environment_version = serializers.IntegerField(
        allow_null=True, default=None, help_text="The number of that environment's version."
    )
    secrets = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the secrets that it was asked for with."
    )

    class Meta:
        model = Workspace
        fields = [
            *("id", "name", "state", "wanted", "reason", "error", "simulated", "url", "portal_url"),
            *("team", "owner", "template", "flavor", "pool", "nodes", "devices", "resources", "stages"),
            *("generation", "created_at", "state_since", "requested_at", "admitted_at", "placed_at"),
            *("launched_at", "ready_at", "heartbeat_at", "activity"),
            *("queue", "leaving", "priority", "preemptible", "expected_hours"),
            *("checkpointed", "loses_work", "environment", "environment_version", "secrets"),
        ]
        read_only_fields = fields

    def to_representation(self, workspace: Workspace) -> dict[str, Any]:
        """All fields, in the order of `fields`."""
        version = workspace.environment_version
        return {
            "id": str(workspace.pk),
            "name": workspace.name,
            "state": workspace.state,
            "wanted": workspace.desired_state,
            "reason": workspace.termination_reason,
            "error": self.get_error(workspace),
            "simulated": workspace.simulated,
            "url": self.get_url(workspace),
            "portal_url": self.get_portal_url(workspace),
            "team": workspace.team.slug,
            "owner": workspace.owner.username,
            "template": workspace.template.slug,
            "flavor": workspace.flavor.slug,
            "pool": workspace.pool.slug if workspace.pool is not None else None,
            "nodes": self.get_nodes(workspace),
            "devices": self.get_devices(workspace),
            "resources": _RESOURCES.to_representation(workspace.resources),
            "stages": self.get_stages(workspace),
            "generation": workspace.generation,
            "created_at": stamp(workspace.created_at),
            "state_since": stamp(workspace.state_since),
            "requested_at": stamp(workspace.requested_at),
            "admitted_at": stamp(workspace.admitted_at),
            "placed_at": stamp(workspace.placed_at),
            "launched_at": stamp(workspace.launched_at),
            "ready_at": stamp(workspace.ready_at),
            "heartbeat_at": stamp(workspace.status.heartbeat_at),
            "activity": dict(workspace.status.activity),
            "queue": self.get_queue(workspace),
            "leaving": self.get_leaving(workspace),
            "priority": workspace.priority,
            "preemptible": workspace.preemptible,
            "expected_hours": self.get_expected_hours(workspace),
            "checkpointed": workspace.checkpointed,
            "loses_work": workspace.loses_work,
            "environment": version.environment.slug if version is not None else None,
            "environment_version": version.number if version is not None else None,
            "secrets": list(workspace.secrets),
        }

    def get_url(self, workspace: Workspace) -> str:
        return workspace.origin + workspace.template.open_path

    def get_portal_url(self, workspace: Workspace) -> str:
        before, after = _page_path()
        return f"{settings.BERTH_PUBLIC_URL}{before}{workspace.pk}{after}"

    @extend_schema_field(ErrorSerializer(allow_null=True))
    def get_error(self, workspace: Workspace) -> dict[str, str] | None:
        entry = workspace.queue_entry
        waits = workspace.state == State.PENDING and entry.outcome
        reason = reason_of(entry.reason if waits else workspace.status.reason)
        if reason is None:
            return None
        return {
            "code": entry.outcome if waits else error_code_of(reason),
            "message": message_of(reason) if waits else sentence_of(reason),
        }

    @extend_schema_field(QueueSerializer(allow_null=True))
    def get_queue(self, workspace: Workspace) -> dict[str, Any] | None:
        if workspace.state != State.PENDING:
            return None
        entry = workspace.queue_entry
        basis = reason_of(entry.eta_basis)
        return {
            "outcome": entry.outcome,
            "position": entry.position,
            "eta": entry.eta_at,
            "eta_basis": message_of(basis) if basis else "",
            "rule": entry.blocker.get("rule", ""),
            "resource": entry.blocker.get("resource", ""),
        }

    @extend_schema_field(LeavingSerializer(allow_null=True))
    def get_leaving(self, workspace: Workspace) -> dict[str, Any] | None:
        notice = workspace.preempting
        return {"at": notice.preempt_at, "reason": notice.cause} if notice is not None else None

    def get_expected_hours(self, workspace: Workspace) -> float:
        return round(workspace.expected_s / 3600, 2)

    def get_nodes(self, workspace: Workspace) -> list[str]:
        return [allocation.node.name for allocation in _held(workspace)]

    @extend_schema_field(HeldDeviceSerializer(many=True))
    def get_devices(self, workspace: Workspace) -> list[dict[str, Any]]:
        return [
            {
                "uuid": item.device.uuid,
                "model": item.device.model,
                "memory_mib": item.device.memory_mib,
                "milli": item.milli,
            }
            for allocation in _held(workspace)
            for item in _shares(allocation)
        ]

    @extend_schema_field(StageSerializer(many=True))
    def get_stages(self, workspace: Workspace) -> list[dict[str, Any]]:
        return [
            {
                "key": stage.key,
                "label": stage.label,
                "state": stage.state,
                "began_at": stamp(stage.began_at),
                "seconds": stage.seconds,
            }
            for stage in selectors.stages(workspace)
        ]


_RESOURCES = ResourcesSerializer()
_NO_ID = UUID(int=0)


@lru_cache(maxsize=1)
def _page_path() -> tuple[str, str]:
    """What stands before and after the id in the path of a workspace's page."""
    before, _, after = reverse("workspaces:detail", args=[_NO_ID]).partition(str(_NO_ID))
    return before, after


def _held(workspace: Workspace) -> list[Allocation]:
    # Set by `with_held` or, in a list, by `listing`.
    held: list[Allocation] = workspace.held  # type: ignore[attr-defined]
    return held


def _shares(allocation: Any) -> Iterable[Any]:
    return allocation.devices.all() if isinstance(allocation, Allocation) else allocation.shares


class EventSerializer(serializers.ModelSerializer[Event]):
    """One entry of the audit log. The message reads after the actor's name."""

    actor = serializers.CharField(source="actor_label")
    message = serializers.CharField(source="sentence")
    data = serializers.DictField()  # type: ignore[assignment]

    class Meta:
        model = Event
        fields = ["id", "at", "actor", "kind", "message", "data"]
        read_only_fields = fields


class LogSerializer(serializers.Serializer[Any]):
    text = serializers.CharField(help_text="The last lines of what the workspace's program wrote.")


def version_of(workspace: Workspace) -> str:
    """Changes with whatever a person would act on; what the agent measures is left out."""
    return _short(
        workspace.state,
        workspace.state_since,
        workspace.desired_state,
        workspace.generation,
        workspace.pool_id,
        workspace.launched_at,
        workspace.ready_at,
        workspace.termination_reason,
        workspace.status.reason,
        workspace.queue_entry.outcome,
        workspace.queue_entry.reason,
        workspace.queue_entry.position,
        workspace.queue_entry.eta_at,
        workspace.preempting.preempt_at if workspace.preempting else None,
    )


def etag_of(workspace: Workspace) -> str:
    """Weak: the version, and after a dot what the agent has measured."""
    return f'W/"{version_of(workspace)}.{_short(workspace.status.heartbeat_at, workspace.status.activity)}"'


def _short(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
