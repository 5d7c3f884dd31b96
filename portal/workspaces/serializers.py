"""Serializers of workspaces and their events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import get_language
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog.serializers import ResourcesSerializer
from portal.common.events.models import Event
from portal.common.reasons.wording import message_of, reason_of, sentence_of
from portal.common.representation import RowRepresentation
from portal.workspaces import checkout_reports, engine_queue, memory_kills, selectors, share_overuse, stops
from portal.workspaces.checkout_reports import CheckoutRow
from portal.workspaces.codes import MemoryCode, ShareCode
from portal.workspaces.engine_queue import EngineWait
from portal.workspaces.lifecycle import DesiredState, State, TerminationReason
from portal.workspaces.memory_kills import LostProgram
from portal.workspaces.models import Preemption, QueueEntry, Workspace, origin_affixes
from portal.workspaces.order_serializers import GitSerializer
from portal.workspaces.problems import error_code_of
from portal.workspaces.rows import WorkspaceRow
from portal.workspaces.selectors import StartStage
from portal.workspaces.share_overuse import ShareRow
from portal.workspaces.stops import StopCause
from provisioning.types import CheckoutKind, PlacedNode


class CheckoutSerializer(RowRepresentation, serializers.Serializer[CheckoutRow]):
    """State of a repository of the last start."""

    kind = serializers.ChoiceField(
        [kind.value for kind in CheckoutKind],
        help_text="Whether it is the workspace's repository or the owner's dotfiles.",
    )
    url = serializers.CharField(help_text="Address of the repository.")
    ref = serializers.CharField(
        allow_blank=True, help_text="Branch, tag or commit; empty for the default branch."
    )
    folder = serializers.CharField(help_text="Folder of the repository in the home.")
    state = serializers.ChoiceField(
        ["waiting", "cloning", "cloned", "kept", "installing", "installed", "failed"]
    )
    commit = serializers.CharField(
        allow_blank=True, help_text="Commit that is checked out; empty before that."
    )
    percent = serializers.IntegerField(allow_null=True, help_text="Progress in percent; null if unknown.")
    code = serializers.CharField(allow_blank=True, help_text="Code of the failure; empty for none.")
    message = serializers.CharField(allow_blank=True)
    next_action = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField(
        allow_null=True, help_text="When it reached this state; null before it starts."
    )


class WorkspaceProblem(NamedTuple):
    """Why a workspace waits or failed."""

    code: str
    message: str


class ErrorSerializer(RowRepresentation, serializers.Serializer[WorkspaceProblem]):
    """Reason why the workspace waits or failed."""

    code = serializers.CharField(help_text="Reason code (`ReasonCode`).")
    message = serializers.CharField()


class StageSerializer(RowRepresentation, serializers.Serializer[StartStage]):
    """A stage of a start, with its duration."""

    key = serializers.CharField(help_text="Name of the step for programs.")
    label = serializers.CharField(help_text="Name of the step for people.")  # type: ignore[assignment]
    state = serializers.ChoiceField(["done", "current", "failed", "todo"])
    began_at = serializers.DateTimeField(allow_null=True, help_text="When it began; null before that.")
    seconds = serializers.FloatField(
        allow_null=True, help_text="Duration in seconds, so far if it still runs; null before it begins."
    )
    by = serializers.CharField(
        allow_blank=True, help_text="Username of the approver, of the stage `approved`; else empty."
    )


class HeldDeviceSerializer(RowRepresentation, serializers.Serializer[Any]):
    """An accelerator allocated to the workspace, or a share of it in thousandths."""

    uuid = serializers.CharField(source="device.uuid", help_text="UUID of the accelerator, from its driver.")
    model = serializers.CharField(source="device.model")
    memory_mib = serializers.IntegerField(source="device.memory_mib")
    share_milli = serializers.IntegerField(
        source="milli",
        help_text="Share allocated to the workspace, in thousandths. 1000 is the whole accelerator.",
    )


class QueueSerializer(RowRepresentation, serializers.Serializer[QueueEntry]):
    """Position and reason of a queued workspace."""

    outcome = serializers.CharField(
        allow_blank=True, help_text="`queued` or `needs_approval`; empty if not decided yet."
    )
    position = serializers.IntegerField(
        allow_null=True, help_text="Position in the queue, from 1; null if it does not wait."
    )
    eta = serializers.DateTimeField(
        source="eta_at", allow_null=True, help_text="Estimated start; null if unknown."
    )
    eta_basis = serializers.CharField(allow_blank=True, help_text="Basis of the estimate.")
    member_order = serializers.CharField(
        allow_blank=True,
        help_text="How the use of the team's members changes the position; empty if it does not.",
    )
    next_flavor = serializers.CharField(
        allow_blank=True,
        help_text="On which of its `flavors` it is expected to start, and why; empty if it lists one.",
    )
    rule = serializers.CharField(
        allow_blank=True, help_text="Rule that it waits for; empty if it waits for capacity."
    )
    resource = serializers.CharField(
        allow_blank=True, help_text="Resource that it waits for; empty for none."
    )

    def get_eta_basis(self, entry: QueueEntry) -> str:
        return self.shared_value(_message_of, entry.eta_basis) or ""

    def get_member_order(self, entry: QueueEntry) -> str:
        return self.shared_value(_message_of, entry.member_order) or ""

    def get_next_flavor(self, entry: QueueEntry) -> str:
        return self.shared_value(_message_of, entry.next_flavor) or ""

    def get_rule(self, entry: QueueEntry) -> str:
        return str(entry.blocker.get("rule", ""))

    def get_resource(self, entry: QueueEntry) -> str:
        return str(entry.blocker.get("resource", ""))


class EngineWaitSerializer(RowRepresentation, serializers.Serializer[EngineWait]):
    """The wait of a workspace at an engine that places workspaces itself, as the engine reports it."""

    position = serializers.IntegerField(
        allow_null=True, help_text="Position in the engine's queue, from 1; null if unknown."
    )
    code = serializers.CharField(
        allow_blank=True, help_text="Code of the engine's reason, such as `priority`; empty for none."
    )
    message = serializers.CharField(
        allow_blank=True, help_text="The engine's reason in words; empty for none."
    )
    starts_at = serializers.DateTimeField(
        allow_null=True, help_text="Start expected by the engine; null if unknown or overdue."
    )
    seen_at = serializers.DateTimeField(help_text="When the engine reported this.")


class PlacedNodeSerializer(RowRepresentation, serializers.Serializer[PlacedNode]):
    """A node on which the engine has placed the workspace."""

    node = serializers.CharField(help_text="Name of the node.")
    devices = serializers.ListField(
        child=serializers.CharField(), help_text="Devices on this node, as the engine names them."
    )


class PreemptingSerializer(RowRepresentation, serializers.Serializer[Preemption]):
    """When and why a running workspace will be preempted."""

    at = serializers.DateTimeField(
        source="preempt_at", help_text="When it will be stopped, unless preemption is cancelled."
    )
    reason = serializers.CharField(source="cause", help_text="Why it is preempted, in words.")


class GpuOveruseSerializer(RowRepresentation, serializers.Serializer[ShareRow]):
    """A shared GPU on which the workspace exceeds its share, or on which its use is unknown."""

    device = serializers.CharField(help_text="UUID of the GPU.")
    code = serializers.ChoiceField(
        [code.value for code in ShareCode if code is not ShareCode.BACK],
        help_text="Code of the last observation or action of its node.",
    )
    message = serializers.CharField()
    used_mib = serializers.IntegerField(
        help_text="Memory used by its processes on the GPU, in MiB; 0 if unknown."
    )
    part_mib = serializers.IntegerField(help_text="Memory of its share, in MiB.")
    since = serializers.DateTimeField(help_text="Start of the overuse.")
    ends_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time from which its processes can be ended; null if this has begun or will not happen.",
    )


class StoppedSerializer(RowRepresentation, serializers.Serializer[StopCause]):
    """Why and when the portal stopped the workspace."""

    code = serializers.CharField(help_text="Reason code.")
    message = serializers.CharField(help_text="The reason as a sentence.")
    rule = serializers.CharField(
        allow_blank=True, help_text="The rule, such as `idle_s` of a reclaim policy; empty without a rule."
    )
    set_by = serializers.CharField(
        allow_blank=True, help_text="Where the rule is set, such as `team:vision`, `settings` or `request`."
    )
    at = serializers.DateTimeField(help_text="Time of the stop.")


class OutOfMemorySerializer(RowRepresentation, serializers.Serializer[LostProgram]):
    """Programs of this start that the system ended for lack of memory."""

    code = serializers.ChoiceField(
        [each.value for each in MemoryCode],
        help_text="Code for the exhausted memory: of the workspace or of its node.",
    )
    message = serializers.CharField()
    at = serializers.DateTimeField(help_text="When its node reported the last one.")
    process = serializers.CharField(
        allow_blank=True, help_text="Name of the last program; empty if it is unknown."
    )
    count = serializers.IntegerField(help_text="Number of programs ended since the start.")
    limit_mib = serializers.IntegerField(help_text="Memory limit of the workspace, in MiB.")


class WorkspaceSerializer(RowRepresentation, serializers.ModelSerializer[Workspace]):
    """A workspace. Its `url` opens in the owner's browser, or with the owner's bearer token."""

    state = serializers.ChoiceField(State.choices, help_text="Current state, from `pending` to `terminated`.")
    desired_state = serializers.ChoiceField(
        DesiredState.choices, help_text="State that the owner has requested."
    )
    reason = serializers.ChoiceField(
        TerminationReason.choices,
        source="termination_reason",
        help_text="Why it ended; empty if it has not.",
    )
    stopped = StoppedSerializer(
        allow_null=True, read_only=True, help_text="Why the portal stopped it; null if a person did."
    )
    owner = serializers.CharField(source="owner.username")
    team = serializers.CharField(source="team.slug")
    template = serializers.CharField(source="template.slug")
    flavor = serializers.CharField(source="flavor.slug")
    flavors = serializers.SerializerMethodField(
        help_text="Flavors that it waits for, in order of preference; empty if it lists one or runs."
    )
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    url = serializers.SerializerMethodField(
        help_text="URL of the first page of the app, on the workspace's own origin."
    )
    portal_url = serializers.SerializerMethodField(help_text="URL of its page in the portal.")
    simulated = serializers.BooleanField(help_text="Whether it is simulated.")
    error = ErrorSerializer(
        allow_null=True, read_only=True, help_text="Why it waits or failed; null if nothing is wrong."
    )
    resources = ResourcesSerializer(help_text="Resources on each node.")
    gpu_released = serializers.BooleanField(
        help_text="Whether its GPUs are released. `attach-gpu` attaches them again."
    )
    nodes = serializers.SerializerMethodField(help_text="Names of its nodes.")
    devices = HeldDeviceSerializer(many=True, read_only=True, help_text="Accelerators allocated to it.")
    gpu_overuse = GpuOveruseSerializer(
        many=True,
        read_only=True,
        help_text="Shared GPUs on which it uses more memory than its share, by its node's last report.",
    )
    out_of_memory = OutOfMemorySerializer(
        allow_null=True,
        read_only=True,
        help_text="Programs of this start that were ended for lack of memory; null for none.",
    )
    stages = serializers.SerializerMethodField(help_text="Steps of the start, in order.")
    queue = QueueSerializer(
        allow_null=True, read_only=True, help_text="Queue position and reason; null if it is not queued."
    )
    engine_wait = EngineWaitSerializer(
        allow_null=True,
        read_only=True,
        help_text="Wait at an engine that places workspaces itself; null if it does not wait there.",
    )
    engine_place = PlacedNodeSerializer(
        many=True,
        read_only=True,
        help_text="Where an engine that places workspaces itself has placed it; empty before, and elsewhere.",
    )
    preempting = PreemptingSerializer(
        allow_null=True, read_only=True, help_text="Announced preemption; null for none."
    )
    expected_hours = serializers.SerializerMethodField(help_text="Expected duration in hours.")
    lifetime_hours = serializers.SerializerMethodField(
        help_text="Lifetime in hours from ready, without extensions; null for no limit."
    )
    ends_at = serializers.DateTimeField(
        source="runs_until",
        allow_null=True,
        help_text="Scheduled stop; null if it is not running or has no limit.",
    )
    bound = serializers.BooleanField(
        help_text="Whether the portal deletes it once the CI job that created it has ended."
    )
    activity = serializers.DictField(
        source="status.activity", help_text="Activity last reported by its agent."
    )
    heartbeat_at = serializers.DateTimeField(
        source="status.heartbeat_at",
        allow_null=True,
        help_text="Time of the agent's last heartbeat; null before the first.",
    )
    environment = serializers.CharField(
        source="environment_version.environment.slug",
        allow_null=True,
        default=None,
        help_text="Slug of its software environment; null for the software of the node.",
    )
    environment_version = serializers.IntegerField(
        source="environment_version.number",
        allow_null=True,
        default=None,
        help_text="Number of the environment's version; null without an environment.",
    )
    secrets = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the secrets that it was requested with."
    )
    git = serializers.SerializerMethodField(help_text="Repository that it clones; null for none.")
    checkouts = CheckoutSerializer(
        many=True,
        read_only=True,
        help_text="State of its repository and the dotfiles at the last start.",
    )

    class Meta:
        model = Workspace
        fields = [
            *("id", "name", "state", "desired_state", "reason", "stopped", "error", "simulated"),
            *("url", "portal_url"),
            *(
                "team",
                "owner",
                "template",
                "flavor",
                "flavors",
                "pool",
                "nodes",
                "devices",
                "resources",
                "stages",
            ),
            *("gpu_released", "gpu_overuse", "out_of_memory"),
            *("generation", "created_at", "state_since", "requested_at", "admitted_at", "placed_at"),
            *("launched_at", "began_at", "ready_at", "heartbeat_at", "activity"),
            *("queue", "engine_wait", "engine_place", "preempting"),
            *("priority", "preemptible", "expected_hours"),
            *("lifetime_hours", "ends_at", "bound"),
            *("checkpointed", "loses_work", "environment", "environment_version", "secrets"),
            *("git", "checkouts"),
        ]
        read_only_fields = fields
        live = frozenset({"error", "queue", "engine_wait", "gpu_overuse", "out_of_memory", "stages"})

    def cacheable_fields(self, row: WorkspaceRow) -> dict[str, Any]:
        """Return the fields that depend on the row alone, cached on the row."""
        data = row.shown.get(self._key)
        if data is None:
            data = row.shown[self._key] = super().cacheable_fields(row)
        return {**data}

    @cached_property
    def _key(self) -> tuple[str | None, ...]:
        """Return the cache key: everything besides the row that the cached values depend on."""
        return get_language(), *self._url_parts

    @cached_property
    def _labels(self) -> dict[str, str]:
        return selectors.stage_labels()

    @cached_property
    def _url_parts(self) -> tuple[str, str, str, str]:
        """The parts of URLs around the name in an origin and around the id in a page's path."""
        before, after = _page_path()
        return *origin_affixes(), settings.BERTH_PUBLIC_URL + before, after

    def get_flavors(self, row: WorkspaceRow) -> list[str]:
        return [choice["flavor"] for choice in row.flavor_choices]

    def get_url(self, row: WorkspaceRow) -> str:
        before, after, *_ = self._url_parts
        return f"{before}{row.external_name}{after}{row.template.open_path}"

    def get_portal_url(self, row: WorkspaceRow) -> str:
        *_, before, after = self._url_parts
        return f"{before}{row.pk}{after}"

    def get_error(self, row: WorkspaceRow) -> WorkspaceProblem | None:
        entry = row.queue_entry
        if row.state == State.PENDING and entry.outcome:
            message = self.shared_value(_message_of, entry.reason)
            return WorkspaceProblem(entry.outcome, message) if message is not None else None
        problem: WorkspaceProblem | None = self.shared_value(_problem_of, row.status.reason)
        return problem

    def get_stopped(self, row: WorkspaceRow) -> StopCause | None:
        cause: StopCause | None = self.shared_value(stops.cause_of, row.status.stopped)
        return cause

    @extend_schema_field(GitSerializer(allow_null=True))
    def get_git(self, row: WorkspaceRow) -> dict[str, str] | None:
        return {name: row.git.get(name, "") for name in GIT_FIELDS} if row.git else None

    def get_checkouts(self, row: WorkspaceRow) -> list[CheckoutRow]:
        return checkout_reports.rows_of(row.git, row.status.checkouts)

    def get_queue(self, row: WorkspaceRow) -> QueueEntry | None:
        return row.queue_entry if row.state == State.PENDING else None

    def get_engine_wait(self, row: WorkspaceRow) -> EngineWait | None:
        return engine_queue.current_wait(row, timezone.now())

    def get_engine_place(self, row: WorkspaceRow) -> list[PlacedNode]:
        return engine_queue.place_of(row)

    def get_expected_hours(self, row: WorkspaceRow) -> float:
        return round(row.expected_s / 3600, 2)

    def get_lifetime_hours(self, row: WorkspaceRow) -> float | None:
        return None if row.lifetime_s is None else round(row.lifetime_s / 3600, 2)

    def get_nodes(self, row: WorkspaceRow) -> list[str]:
        return [allocation.node.name for allocation in row.held]

    def get_devices(self, row: WorkspaceRow) -> list[Any]:
        return [share for allocation in row.held for share in allocation.shares]

    def get_resources(self, row: WorkspaceRow) -> dict[str, Any]:
        resources: dict[str, Any] = self.shared_value(_RESOURCES.to_representation, row.resources)
        return resources

    def get_gpu_overuse(self, row: WorkspaceRow) -> list[ShareRow]:
        return share_overuse.overuse_rows(row, timezone.now())

    def get_out_of_memory(self, row: WorkspaceRow) -> LostProgram | None:
        return memory_kills.last_report(row)

    @extend_schema_field(StageSerializer(many=True))
    def get_stages(self, row: WorkspaceRow) -> list[dict[str, Any]]:
        key = ("stages", *self._key)
        if key not in row.shown:
            part = self.part(StageSerializer)
            stages = selectors.stages(row, self._labels)
            row.shown[key] = [(stage, part.to_representation(stage)) for stage in stages]
        return [
            {**shown, "seconds": stage.seconds} if stage.state == "current" else shown
            for stage, shown in row.shown[key]
        ]


GIT_FIELDS = tuple(GitSerializer().fields)


def _message_of(data: Mapping[str, Any]) -> str | None:
    """Return the message of a stored reason, or `None`."""
    reason = reason_of(data)
    return message_of(reason) if reason is not None else None


def _problem_of(data: Mapping[str, Any]) -> WorkspaceProblem | None:
    """Return the stored reason of a failure, or `None`."""
    reason = reason_of(data)
    return WorkspaceProblem(error_code_of(reason), sentence_of(reason)) if reason is not None else None


_RESOURCES = ResourcesSerializer()
_NO_ID = UUID(int=0)


@lru_cache(maxsize=1)
def _page_path() -> tuple[str, str]:
    """Return the path of a workspace's page before and after the id."""
    before, _, after = reverse("workspaces:detail", args=[_NO_ID]).partition(str(_NO_ID))
    return before, after


class EventSerializer(serializers.ModelSerializer[Event]):
    """One entry of the audit log. The message follows the actor's name."""

    actor = serializers.CharField(source="actor_label", help_text="Display name of the actor.")
    message = serializers.CharField(source="sentence")
    data = serializers.DictField(help_text="Details of the event by name. Names are only added.")  # type: ignore[assignment]

    class Meta:
        model = Event
        fields = ["id", "at", "actor", "kind", "message", "data"]
        read_only_fields = fields


class LogSerializer(serializers.Serializer[Any]):
    """The last lines of a log."""

    text = serializers.CharField(help_text="The last lines of what the workspace's program wrote.")
