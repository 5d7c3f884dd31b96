"""Serializers of environments, versions and builds."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.catalog.environments import selectors
from portal.catalog.environments.models import (
    PYTHONS,
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    SourceKind,
    Stage,
    VersionState,
)
from portal.common.api import StrictSerializer
from portal.common.problem_serializers import ReasonSerializer
from portal.common.reasons.wording import message_of, next_action_of, reason_of
from provisioning.environment_messages import MAX_LOCK


class PackageSerializer(serializers.Serializer[Any]):
    """A package of an environment."""

    name = serializers.CharField()
    version = serializers.CharField(help_text="Version of the package.")
    size_kib = serializers.IntegerField(help_text="Disk space in KiB.")


class FailureFields:
    """Fields for the failure of a version or a build: code, message and next action."""

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_failure(self, row: EnvironmentVersion | EnvironmentBuild) -> dict[str, Any] | None:
        return row.failure or None

    def get_message(self, row: EnvironmentVersion | EnvironmentBuild) -> str:
        reason = reason_of(row.failure)
        return message_of(reason) if reason is not None else ""

    def get_next_action(self, row: EnvironmentVersion | EnvironmentBuild) -> str:
        reason = reason_of(row.failure)
        return next_action_of(reason) if reason is not None else ""


class VersionSerializer(FailureFields, serializers.ModelSerializer[EnvironmentVersion]):
    """A numbered version. Immutable once ready."""

    source_kind = serializers.ChoiceField(SourceKind.choices, help_text="Format of `source`.")
    state = serializers.ChoiceField(VersionState.choices)
    programs = serializers.ListField(
        child=serializers.CharField(), help_text="Programs in the environment that templates can start."
    )
    cuda = serializers.CharField(help_text="CUDA version of its packages, such as `12.4`; empty for none.")
    digest = serializers.CharField(help_text="Digest of its content; empty until it is ready.")
    failure = serializers.SerializerMethodField(help_text="Why its build failed; null if it did not.")
    message = serializers.SerializerMethodField(help_text="Reason, as a sentence.")
    next_action = serializers.SerializerMethodField(
        help_text="What to do, or what the portal does automatically; empty if nothing failed."
    )
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)

    class Meta:
        model = EnvironmentVersion
        fields = [
            *("number", "state", "source_kind", "python", "python_version", "digest", "size_mib", "programs"),
            *("cuda", "failure", "message", "next_action"),
            *("retry_at", "created_at", "created_by", "ready_at"),
        ]
        read_only_fields = fields


class VersionDetailSerializer(VersionSerializer):
    """A version with its source, lock and packages."""

    packages = PackageSerializer(many=True, help_text="The packages, by name.")

    class Meta(VersionSerializer.Meta):
        fields = [*VersionSerializer.Meta.fields, "source", "lock", "packages"]
        read_only_fields = fields


class EnvironmentSerializer(serializers.ModelSerializer[Environment]):
    """A software environment. `team` is null if it is for all teams; `current` is for new workspaces."""

    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    kind = serializers.ChoiceField(
        Kind.choices, help_text="Source of the environment. `node` is the software installed on each node."
    )
    successor = serializers.CharField(
        source="successor.slug",
        allow_null=True,
        default=None,
        help_text="Slug of the replacement; null for none.",
    )
    current = VersionSerializer(
        allow_null=True, help_text="Version for new workspaces; null until one is ready."
    )

    class Meta:
        model = Environment
        fields = [
            *("slug", "name", "description", "team", "kind", "python", "notebook", "enabled", "deprecated"),
            *("successor", "curated", "current", "created_at", "updated_at", "updated_by"),
        ]
        read_only_fields = fields


class _Source(StrictSerializer):
    source_kind = serializers.ChoiceField(
        SourceKind.choices,
        default=SourceKind.PACKAGES,
        help_text="Format of `source`. A lock file without hashes is treated as a requirements file.",
    )
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=MAX_LOCK,
        trim_whitespace=False,
        help_text="Packages from the package index, one per line, or the content of the file.",
    )
    python = serializers.ChoiceField(
        [(python, python) for python in PYTHONS],
        required=False,
        help_text="Python version. Default: that of the portal.",
    )

    examples = {"source": "torch\npandas>=2"}


class EnvironmentCreateSerializer(_Source):
    name = serializers.CharField(max_length=80)
    slug = serializers.CharField(
        max_length=40, required=False, help_text="Slug. Default: derived from the name."
    )
    description = serializers.CharField(max_length=200, default="", allow_blank=True)
    team = serializers.CharField(
        max_length=40,
        default=None,
        allow_null=True,
        help_text="Slug of the team; null for everyone (operators only).",
    )
    notebook = serializers.BooleanField(
        default=True, help_text="Whether to add JupyterLab and marimo to the packages."
    )
    build = serializers.BooleanField(
        default=True, help_text="Whether to build it immediately. If false, it is built on request."
    )


class EnvironmentChangeSerializer(StrictSerializer):
    """Fields to change. Omitted fields stay unchanged."""

    name = serializers.CharField(max_length=80, required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    enabled = serializers.BooleanField(
        required=False, help_text="Whether it can be selected for new workspaces."
    )
    deprecated = serializers.BooleanField(
        required=False, help_text="Whether new workspaces should use another one."
    )
    notebook = serializers.BooleanField(
        required=False, help_text="Whether to add JupyterLab and marimo, from the next version on."
    )
    successor = serializers.CharField(
        max_length=40, required=False, allow_null=True, help_text="Slug of the replacement; null for none."
    )


class BuildCreateSerializer(StrictSerializer):
    """Without `source`, builds the newest version or, if it is ready, a new one of the same source."""

    source_kind = serializers.ChoiceField(
        SourceKind.choices, default=SourceKind.PACKAGES, help_text="Format of `source`."
    )
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=MAX_LOCK, trim_whitespace=False, required=False, help_text="Source of a new version."
    )
    python = serializers.ChoiceField(
        [(python, python) for python in PYTHONS],
        required=False,
        help_text="Python version. Only with `source`. Default: unchanged.",
    )

    examples = {"source": "torch\npandas>=2"}


class SourcePreviewRequestSerializer(_Source):
    """The source to preview."""


class ReachSerializer(serializers.Serializer[Any]):
    """Workspaces and templates that use the environment now. Workspaces keep their version."""

    workspaces = serializers.IntegerField(help_text="Number of workspaces that use it.")
    running = serializers.IntegerField(help_text="Number of these workspaces that run.")
    templates = serializers.ListField(
        child=serializers.CharField(), help_text="Slugs of the templates that use it."
    )


class SourcePreviewSerializer(serializers.Serializer[Any]):
    """The changes that a new version would make. Nothing is saved."""

    against = serializers.IntegerField(help_text="Number of the version it is compared with; 0 for none.")
    exact = serializers.BooleanField(
        help_text="Whether `changes` are complete. If false, dependencies can change, too."
    )
    changes = serializers.ListField(
        child=serializers.CharField(), help_text="Packages that would be added, removed or changed."
    )
    reach = ReachSerializer(help_text="Current use.")
    when = serializers.ListField(
        child=serializers.CharField(), help_text="When the new version would take effect, and for whom."
    )


class BuildSerializer(FailureFields, serializers.ModelSerializer[EnvironmentBuild]):
    """An attempt to build a version on a node."""

    version = serializers.IntegerField(
        source="version.number", help_text="Number of the version that is built."
    )
    node = serializers.CharField(source="node.name")
    pool = serializers.CharField(source="node.pool.slug")
    state = serializers.ChoiceField(BuildState.choices)
    stage = serializers.ChoiceField(
        Stage.choices, allow_blank=True, help_text="Current step of the build; empty if it is not running."
    )
    done = serializers.IntegerField(help_text="Packages completed in this stage, out of `total`.")
    percent = serializers.SerializerMethodField(
        help_text="Overall progress in percent; null once the build has ended."
    )
    requester = serializers.CharField(
        source="requester.username", default=None, allow_null=True, help_text="Username of the requester."
    )
    failure = serializers.SerializerMethodField(help_text="Why the build failed; null if it did not.")
    message = serializers.SerializerMethodField(help_text="Reason, as a sentence.")
    next_action = serializers.SerializerMethodField(
        help_text="What to do, or what the portal does automatically; empty if nothing failed."
    )

    class Meta:
        model = EnvironmentBuild
        fields = [
            *("id", "version", "node", "pool", "state", "stage", "done", "total", "percent", "requester"),
            *("created_at", "started_at", "ended_at", "retry_at", "failure", "message", "next_action"),
        ]
        read_only_fields = fields

    def get_percent(self, build: EnvironmentBuild) -> int | None:
        return selectors.percent_of(build) if build.open else None
