"""Software environments: what is in them, version by version, and each attempt to build one on a node."""

from __future__ import annotations

import hashlib
import json
import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_validator
from portal.fleet.inventory.models import Node
from portal.people.accounts.models import Team
from provisioning.environment_messages import BuildStage
from provisioning.environment_messages import SourceKind as MessageKind

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
DEFAULT_PYTHON = "3.12"


class Kind(models.TextChoices):
    """Where an environment comes from."""

    BUILT = "built", _("Built from packages")
    NODE = "node", _("Installed on each node")


class SourceKind(models.TextChoices):
    """What a version is built from; the values are those of `provisioning.environment_messages`."""

    PACKAGES = MessageKind.PACKAGES.value, _("List of packages")
    REQUIREMENTS = MessageKind.REQUIREMENTS.value, _("requirements.txt")
    PYPROJECT = MessageKind.PYPROJECT.value, _("pyproject.toml")
    LOCK = MessageKind.LOCK.value, _("Lock with hashes")
    FOLDER = MessageKind.FOLDER.value, _("Folder that is on the nodes")


class VersionState(models.TextChoices):
    """How far a version is. A new one is built only when somebody asks for it."""

    NEW = "new", _("Not built yet")
    BUILDING = "building", _("Being built")
    READY = "ready", _("Ready")
    FAILED = "failed", _("Not built")


class BuildState(models.TextChoices):
    QUEUED = "queued", _("Queued")
    BUILDING = "building", _("Building")
    READY = "ready", _("Ready")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


class Stage(models.TextChoices):
    """What a build does; the values are those of `provisioning.environment_messages`."""

    WAITING = BuildStage.WAITING.value, _("Waiting")
    RESOLVING = BuildStage.RESOLVING.value, _("Resolving versions")
    DOWNLOADING = BuildStage.DOWNLOADING.value, _("Downloading")
    INSTALLING = BuildStage.INSTALLING.value, _("Installing")
    COMPILING = BuildStage.COMPILING.value, _("Compiling")
    CHECKING = BuildStage.CHECKING.value, _("Checking")


OPEN = (BuildState.QUEUED, BuildState.BUILDING)


class Environment(models.Model):
    """A named environment: everybody's, or of one team.

    `current` is the version that new workspaces get; None until one is ready. One of the kind NODE is what
    each node has by itself: it has no versions. `updated_at` and `updated_by` tell of what people change.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200, blank=True)
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="environments"
    )
    kind = models.CharField(max_length=5, choices=Kind, default=Kind.BUILT)
    python = models.CharField(
        max_length=5, default=DEFAULT_PYTHON, help_text="Requested Python version, as `3.12`."
    )
    # JupyterLab and marimo are added to what is asked for, so that their templates run in it.
    notebook = models.BooleanField(default=True, help_text="Whether JupyterLab can use it.")
    current = models.ForeignKey(
        "EnvironmentVersion", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    enabled = models.BooleanField(default=True)
    deprecated = models.BooleanField(
        default=False, help_text="Whether new workspaces should use another one."
    )
    successor = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="predecessors"
    )
    # Made by the portal itself.
    curated = models.BooleanField(default=False, help_text="Whether operators maintain it for everybody.")
    position = models.PositiveIntegerField(default=100)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150, blank=True, help_text="Who last changed it.")

    class Meta:
        ordering = ["position", "slug"]

    def __str__(self) -> str:
        return self.name


class EnvironmentVersion(models.Model):
    """A numbered version: its source, and what was made of it. Neither is changed once it is ready.

    `failure` is a reason (`code`, `params`) and `retry_at` when it is tried again by itself; None where that
    would not help. `builds_failed` counts failures in a row.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(help_text="Number of the version, from 1.")
    source_kind = models.CharField(max_length=12, choices=SourceKind)
    source = models.TextField(blank=True, help_text="Requested packages, as written.")
    # Equal for versions that are asked for in the same words: of several only one is resolved.
    source_digest = models.CharField(max_length=64, db_index=True)
    python = models.CharField(max_length=5, help_text="Requested Python version, as `3.12`.")
    lock = models.TextField(blank=True, help_text="Lock file: packages with exact versions and hashes.")
    digest = models.CharField(max_length=32, blank=True, db_index=True)
    packages = models.JSONField(default=list, blank=True)
    size_mib = models.PositiveBigIntegerField(default=0, help_text="Size in MiB.")
    programs = models.JSONField(default=list, blank=True)
    python_version = models.CharField(
        max_length=20,
        blank=True,
        help_text="Installed Python version, as `3.12.4`; empty until it is built.",
    )
    cuda = models.CharField(max_length=20, blank=True)
    state = models.CharField(max_length=8, choices=VersionState, default=VersionState.BUILDING)
    failure = models.JSONField(default=dict, blank=True)
    retry_at = models.DateTimeField(null=True, blank=True, help_text="Time of the next attempt.")
    builds_failed = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    ready_at = models.DateTimeField(null=True, blank=True, help_text="When it was ready.")

    class Meta:
        ordering = ["environment", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["environment", "number"], name="environment_version_number"),
            models.CheckConstraint(
                condition=~Q(state=VersionState.READY) | ~Q(digest=""), name="environment_ready_has_digest"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.environment_id} version {self.number}"


class EnvironmentBuild(models.Model):
    """One attempt to have a version on a node. `lease` names the command that may be under way.

    `log` is the end of what was written, bounded; `log_dropped` characters stood before it, `log_received`
    is how far the node's own count has come. `retry_at` is when this node is tried again after a failure.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    version = models.ForeignKey(EnvironmentVersion, on_delete=models.CASCADE, related_name="builds")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="environment_builds")
    state = models.CharField(max_length=9, choices=BuildState, default=BuildState.QUEUED)
    # Lower ones wait for higher ones: what a person waits for goes before what the portal wants.
    priority = models.SmallIntegerField(default=0)
    stage = models.CharField(max_length=11, choices=Stage, blank=True)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0, help_text="Number of packages in this stage.")
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="When it began.")
    ended_at = models.DateTimeField(null=True, blank=True)
    retry_at = models.DateTimeField(null=True, blank=True, help_text="Time of the next attempt.")
    failure = models.JSONField(default=dict, blank=True)
    log = models.TextField(blank=True)
    log_dropped = models.PositiveBigIntegerField(default=0)
    log_received = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["version", "node"], condition=Q(state__in=OPEN), name="one_open_build_of_a_version"
            ),
            models.UniqueConstraint(
                fields=["node"], condition=Q(state=BuildState.BUILDING), name="one_build_at_a_time_on_a_node"
            ),
        ]
        indexes = [
            models.Index(fields=["version", "-created_at"], name="build_by_version"),
            models.Index(
                fields=["node", "-priority", "created_at"], name="build_open", condition=Q(state__in=OPEN)
            ),
            models.Index(fields=["ended_at"], name="build_ended"),
        ]

    def __str__(self) -> str:
        return f"build of {self.version_id} on {self.node_id}"

    @property
    def open(self) -> bool:
        return self.state in OPEN


class StoredContent(models.Model):
    """What nodes may hold because this portal had it built, by its digest; it outlives its environment.

    `unused_since` is set while nothing names it: after a while nodes are asked to remove it. What a node
    holds beside this is not ours to remove.
    """

    digest = models.CharField(max_length=32, primary_key=True)
    unused_since = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.digest


def source_digest_of(kind: str, python: str, source: str) -> str:
    """Equal for the same words, but for blank lines and what stands behind them."""
    lines = [line.rstrip() for line in source.splitlines() if line.strip()]
    return hashlib.sha256(json.dumps([kind, python, lines]).encode()).hexdigest()
