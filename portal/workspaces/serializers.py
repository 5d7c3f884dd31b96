"""Workspaces, their events and verdicts as the API shows them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import get_language
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from portal.catalog.models import MAX_LIFETIME_H
from portal.catalog.serializers import ResourcesSerializer
from portal.common.api import StrictSerializer
from portal.common.events.models import Event
from portal.common.hours import HoursField
from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.common.representation import stamp
from portal.common.scopes import Scope
from portal.fleet.inventory.models import AllocatedDevice, Allocation
from portal.people.accounts.authentication import require_scope
from portal.workspaces import checkout_reports, selectors, share_overuse
from portal.workspaces.codes import ShareCode
from portal.workspaces.lifecycle import DesiredState, State, TerminationReason
from portal.workspaces.listing import ListedWorkspace
from portal.workspaces.models import Workspace, origin_around
from portal.workspaces.share_overuse import ShareRow
from portal.workspaces.troubles import error_code_of
from provisioning.types import CheckoutKind


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


class GitSerializer(StrictSerializer):
    """A repository that a workspace clones at its start."""

    url = serializers.CharField(
        max_length=500,
        allow_blank=True,
        help_text="`https://host/path`, `ssh://git@host/path` or `git@host:path`; empty: none at all.",
    )
    ref = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=200,
        default="",
        help_text="A branch, tag or commit; without it, the repository's own branch.",
    )
    secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=64,
        default="",
        help_text="Name of the secret that opens it: a token for HTTPS, a private key for SSH.",
    )


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
    expected_hours = HoursField(
        source="expected_s",
        required=False,
        min_value=1 / 60,
        max_value=720,
        help_text="How long you will need it: estimates rest on it, and short ones may overtake.",
    )
    lifetime_hours = HoursField(
        source="lifetime_s",
        required=False,
        min_value=1 / 60,
        max_value=MAX_LIFETIME_H,
        help_text="After how long it stops, as its flavor and the site allow; without it, by their default.",
    )
    start_without_gpu = serializers.BooleanField(
        required=False,
        default=False,
        help_text=(
            "Where it would wait and can start at once without its accelerators, start it so, as after "
            "`release-gpu`: `attach-gpu` takes them, and its user is told once when they are free."
        ),
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
    git = GitSerializer(
        required=False,
        allow_null=True,
        default=None,
        help_text="A repository to clone; without it, its template's.",
    )


class WorkspaceChangeSerializer(StrictSerializer):
    """What is said anew of a workspace; what is left out stays."""

    name = serializers.CharField(
        required=False,
        max_length=60,
        help_text="Lower-case letters, digits and hyphens. While it waits, is stopped or has failed.",
    )
    expected_hours = HoursField(
        source="expected_s",
        required=False,
        min_value=1 / 60,
        max_value=720,
        help_text="How long it will be needed, from its start on. What runs to an end is extended instead.",
    )
    priority = serializers.IntegerField(
        required=False,
        min_value=-100,
        max_value=100,
        help_text="Higher ones go first. Above 0 for owners of the team and operators only.",
    )


def git_of(request: Request, given: Mapping[str, Any]) -> Any:
    """The repository of a request, None where none was named. Raises `PermissionDenied`.

    A secret is sent to the server that the request names: that is for tokens that may open workspaces, in
    which they could read it as well.
    """
    git = given["git"]
    if git is not None and git["secret"]:
        require_scope(request, Scope.WORKSPACES_CONNECT)
    return git


class CheckoutSerializer(serializers.Serializer[Any]):
    """What became of a repository of the last start."""

    kind = serializers.ChoiceField([kind.value for kind in CheckoutKind])
    url = serializers.CharField()
    ref = serializers.CharField(allow_blank=True)
    folder = serializers.CharField(help_text="Its folder in the home.")
    state = serializers.ChoiceField(
        ["waiting", "cloning", "cloned", "kept", "installing", "installed", "failed"]
    )
    commit = serializers.CharField(allow_blank=True)
    percent = serializers.IntegerField(allow_null=True)
    code = serializers.CharField(allow_blank=True, help_text="Why it failed, or empty.")
    message = serializers.CharField(allow_blank=True)
    next_action = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField(allow_null=True)


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
    share_milli = serializers.IntegerField(
        source="milli", help_text="Thousandths of it that the workspace holds; 1000 is the whole one."
    )


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


class PreemptingSerializer(serializers.Serializer[Any]):
    """By when a running workspace has to make room, and why."""

    at = serializers.DateTimeField()
    reason = serializers.CharField()


class GpuOveruseSerializer(serializers.Serializer[ShareRow]):
    """A shared GPU of which it takes more than its part, or nobody knows how much it takes."""

    device = serializers.CharField(help_text="UUID of the GPU.")
    code = serializers.ChoiceField(
        [each.value for each in ShareCode if each is not ShareCode.BACK],
        help_text="What its node has seen last, or done.",
    )
    message = serializers.CharField()
    used_mib = serializers.IntegerField(help_text="What its processes hold there; 0 where it is unknown.")
    part_mib = serializers.IntegerField(help_text="What it may hold.")
    since = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(
        allow_null=True,
        help_text="From when on a process of it may be ended; null where that has begun, or none will be.",
    )


class WorkspaceSerializer(serializers.ModelSerializer[Workspace]):
    """A workspace. Its `url` opens in the browser of its user, or with a bearer token of theirs."""

    state = serializers.ChoiceField(State.choices)
    desired_state = serializers.ChoiceField(DesiredState.choices)
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
    gpu_released = serializers.BooleanField(
        help_text="Whether it goes on without the accelerators of its flavor; `attach-gpu` takes them again."
    )
    nodes = serializers.SerializerMethodField(help_text="Names of the nodes that it is on.")
    devices = serializers.SerializerMethodField()
    gpu_overuse = serializers.SerializerMethodField(
        help_text="Shared GPUs of whose memory it takes more than its part now, by what its node told last."
    )
    stages = serializers.SerializerMethodField()
    queue = serializers.SerializerMethodField(help_text="How it stands while it waits, or null.")
    preempting = serializers.SerializerMethodField(help_text="That it has to make room, or null.")
    expected_hours = serializers.SerializerMethodField(help_text="How long it is expected to run.")
    lifetime_hours = serializers.SerializerMethodField(
        help_text="How long it may run from ready on, extensions aside; null: it has no end."
    )
    ends_at = serializers.DateTimeField(
        source="runs_until",
        allow_null=True,
        help_text="When it stops by itself; null while it does not run, or without end.",
    )
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
    git = serializers.SerializerMethodField(help_text="The repository that it clones, or null.")
    checkouts = serializers.SerializerMethodField(
        help_text="What became of its repository, and of dotfiles, at the last start."
    )

    class Meta:
        model = Workspace
        fields = [
            *("id", "name", "state", "desired_state", "reason", "error", "simulated", "url", "portal_url"),
            *("team", "owner", "template", "flavor", "pool", "nodes", "devices", "resources", "stages"),
            *("gpu_released", "gpu_overuse"),
            *("generation", "created_at", "state_since", "requested_at", "admitted_at", "placed_at"),
            *("launched_at", "ready_at", "heartbeat_at", "activity"),
            *("queue", "preempting", "priority", "preemptible", "expected_hours"),
            *("lifetime_hours", "ends_at"),
            *("checkpointed", "loses_work", "environment", "environment_version", "secrets"),
            *("git", "checkouts"),
        ]
        read_only_fields = fields

    def to_representation(self, workspace: Workspace) -> dict[str, Any]:
        """All fields, in the order of `fields`. A row of a list keeps what does not depend on the time."""
        if not isinstance(workspace, ListedWorkspace):
            return self._written(workspace)
        key = (get_language(), self._around)
        kept = workspace.shown.get(key)
        if kept is None:
            kept = workspace.shown[key] = (self._written(workspace), selectors.stages(workspace))
        shown, stages = kept
        return {
            **shown,
            "error": self.get_error(workspace),
            "queue": self.get_queue(workspace),
            "gpu_overuse": self.get_gpu_overuse(workspace),
            "stages": [
                {**one, "seconds": stage.seconds} if stage.state == "current" else one
                for one, stage in zip(shown["stages"], stages, strict=True)
            ],
        }

    def _written(self, workspace: Workspace) -> dict[str, Any]:
        version = workspace.environment_version
        return {
            "id": str(workspace.pk),
            "name": workspace.name,
            "state": workspace.state,
            "desired_state": workspace.desired_state,
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
            "resources": self._once(_RESOURCES.to_representation, workspace.resources),
            "stages": self.get_stages(workspace),
            "gpu_released": workspace.gpu_released,
            "gpu_overuse": self.get_gpu_overuse(workspace),
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
            "preempting": self.get_preempting(workspace),
            "priority": workspace.priority,
            "preemptible": workspace.preemptible,
            "expected_hours": self.get_expected_hours(workspace),
            "lifetime_hours": self.get_lifetime_hours(workspace),
            "ends_at": stamp(workspace.runs_until),
            "checkpointed": workspace.checkpointed,
            "loses_work": workspace.loses_work,
            "environment": version.environment.slug if version is not None else None,
            "environment_version": version.number if version is not None else None,
            "secrets": list(workspace.secrets),
            "git": self.get_git(workspace),
            "checkouts": self.get_checkouts(workspace),
        }

    def _once(self, show: Callable[[Any], Any], kept: Any) -> Any:
        """What `show` makes of `kept`, which several rows of a list may share: then once for all of them."""
        key = (show, id(kept))
        if key not in self._shown:
            # With the value, so that no other one gets its id while this is remembered.
            self._shown[key] = (kept, show(kept))
        return self._shown[key][1]

    @cached_property
    def _shown(self) -> dict[tuple[Callable[[Any], Any], int], tuple[Any, Any]]:
        return {}

    @cached_property
    def _labels(self) -> dict[str, str]:
        return selectors.stage_labels()

    @cached_property
    def _around(self) -> tuple[str, str, str, str]:
        """What stands before and after the name in an origin, and the id in the address of a page."""
        before, after = _page_path()
        return *origin_around(), settings.BERTH_PUBLIC_URL + before, after

    def get_url(self, workspace: Workspace) -> str:
        before, after, *_ = self._around
        return f"{before}{workspace.external_name}{after}{workspace.template.open_path}"

    def get_portal_url(self, workspace: Workspace) -> str:
        *_, before, after = self._around
        return f"{before}{workspace.pk}{after}"

    @extend_schema_field(ErrorSerializer(allow_null=True))
    def get_error(self, workspace: Workspace) -> dict[str, str] | None:
        entry = workspace.queue_entry
        waits = workspace.state == State.PENDING and entry.outcome
        if waits:
            message = self._once(_message_of, entry.reason)
            return {"code": entry.outcome, "message": message} if message is not None else None
        error: dict[str, str] | None = self._once(_error_of, workspace.status.reason)
        return error

    @extend_schema_field(GitSerializer(allow_null=True))
    def get_git(self, workspace: Workspace) -> dict[str, str] | None:
        git = workspace.git
        return {name: git.get(name, "") for name in ("url", "ref", "secret")} if git else None

    @extend_schema_field(CheckoutSerializer(many=True))
    def get_checkouts(self, workspace: Workspace) -> list[dict[str, Any]]:
        rows = checkout_reports.rows_of(workspace.git, workspace.status.checkouts)
        return [
            {name: getattr(row, name) for name in CHECKOUT_FIELDS} | {"at": stamp(row.at)} for row in rows
        ]

    @extend_schema_field(QueueSerializer(allow_null=True))
    def get_queue(self, workspace: Workspace) -> dict[str, Any] | None:
        if workspace.state != State.PENDING:
            return None
        entry = workspace.queue_entry
        return {
            "outcome": entry.outcome,
            "position": entry.position,
            "eta": entry.eta_at,
            "eta_basis": self._once(_message_of, entry.eta_basis) or "",
            "rule": entry.blocker.get("rule", ""),
            "resource": entry.blocker.get("resource", ""),
        }

    @extend_schema_field(PreemptingSerializer(allow_null=True))
    def get_preempting(self, workspace: Workspace) -> dict[str, Any] | None:
        notice = workspace.preempting
        return {"at": notice.preempt_at, "reason": notice.cause} if notice is not None else None

    def get_expected_hours(self, workspace: Workspace) -> float:
        return round(workspace.expected_s / 3600, 2)

    def get_lifetime_hours(self, workspace: Workspace) -> float | None:
        return None if workspace.lifetime_s is None else round(workspace.lifetime_s / 3600, 2)

    def get_nodes(self, workspace: Workspace) -> list[str]:
        return [allocation.node.name for allocation in _held(workspace)]

    @extend_schema_field(HeldDeviceSerializer(many=True))
    def get_devices(self, workspace: Workspace) -> list[dict[str, Any]]:
        return [
            {
                "uuid": item.device.uuid,
                "model": item.device.model,
                "memory_mib": item.device.memory_mib,
                "share_milli": item.milli,
                "milli": item.milli,
            }
            for allocation in _held(workspace)
            for item in _shares(allocation)
        ]

    @extend_schema_field(GpuOveruseSerializer(many=True))
    def get_gpu_overuse(self, workspace: Workspace) -> list[dict[str, Any]]:
        rows = share_overuse.of(workspace, timezone.now())
        return [
            {name: getattr(row, name) for name in OVERUSE_FIELDS}
            | {"since": stamp(row.since), "ends_at": stamp(row.ends_at)}
            for row in rows
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
            for stage in selectors.stages(workspace, self._labels)
        ]


CHECKOUT_FIELDS = tuple(CheckoutSerializer().fields)
OVERUSE_FIELDS = tuple(GpuOveruseSerializer().fields)


def _message_of(kept: Mapping[str, Any]) -> str | None:
    """The sentence of a reason that a row keeps; None where it keeps none."""
    reason = reason_of(kept)
    return message_of(reason) if reason is not None else None


def _error_of(kept: Mapping[str, Any]) -> dict[str, str] | None:
    """Why a workspace has failed, by the reason that its row keeps."""
    reason = reason_of(kept)
    return {"code": error_code_of(reason), "message": sentence_of(reason)} if reason is not None else None


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
        workspace.runs_until,
        workspace.status.checkouts,
        workspace.status.gpu_shares,
        workspace.gpu_released,
        workspace.flavor.slug,
        workspace.name,
        workspace.expected_s,
        workspace.priority,
    )


def etag_of(workspace: Workspace) -> str:
    """Weak: the version, and after a dot what the agent has measured."""
    return f'W/"{version_of(workspace)}.{_short(workspace.status.heartbeat_at, workspace.status.activity)}"'


def _short(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
