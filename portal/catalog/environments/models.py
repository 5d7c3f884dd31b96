"""Models of software environments: environments, versions, builds, and contents on nodes."""

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
    """The origin of an environment."""

    BUILT = "built", _("Built from packages")
    NODE = "node", _("Installed on each node")


class SourceKind(models.TextChoices):
    """The source of a version. Values are those of `provisioning.environment_messages`."""

    PACKAGES = MessageKind.PACKAGES.value, _("List of packages")
    REQUIREMENTS = MessageKind.REQUIREMENTS.value, _("requirements.txt")
    PYPROJECT = MessageKind.PYPROJECT.value, _("pyproject.toml")
    LOCK = MessageKind.LOCK.value, _("Lock with hashes")
    FOLDER = MessageKind.FOLDER.value, _("Folder on the nodes")


class VersionState(models.TextChoices):
    """The state of a version. A new one is built on demand."""

    NEW = "new", _("Not built yet")
    BUILDING = "building", _("Building")
    READY = "ready", _("Ready")
    FAILED = "failed", _("Build failed")


class BuildState(models.TextChoices):
    QUEUED = "queued", _("Queued")
    BUILDING = "building", _("Building")
    READY = "ready", _("Ready")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


class Stage(models.TextChoices):
    """The stage of a build. Values are those of `provisioning.environment_messages`."""

    WAITING = BuildStage.WAITING.value, _("Waiting")
    RESOLVING = BuildStage.RESOLVING.value, _("Resolving versions")
    DOWNLOADING = BuildStage.DOWNLOADING.value, _("Downloading")
    INSTALLING = BuildStage.INSTALLING.value, _("Installing")
    COMPILING = BuildStage.COMPILING.value, _("Compiling")
    CHECKING = BuildStage.CHECKING.value, _("Checking")


OPEN = (BuildState.QUEUED, BuildState.BUILDING)


class Environment(models.Model):
    """A named environment, general or of one team.

    `current` is the version for new workspaces; None until one is ready. An environment of kind NODE is the
    software installed on nodes and has no versions. `updated_at` and `updated_by` cover changes by users.
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
        max_length=5, default=DEFAULT_PYTHON, help_text="Requested Python version, such as `3.12`."
    )
    # Adds JupyterLab and marimo, so that their templates run in it.
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
    # Created by the portal.
    curated = models.BooleanField(default=False, help_text="Whether operators maintain it for all teams.")
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
    """A numbered version: its source, and the result of its build. Immutable once ready.

    `failure` is a reason (`code`, `params`). `retry_at` is the time of the next automatic attempt, None if a
    retry would not help. `builds_failed` counts consecutive failures.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField(help_text="Number of the version, from 1.")
    source_kind = models.CharField(max_length=12, choices=SourceKind)
    source = models.TextField(blank=True, help_text="Requested packages, as written.")
    # Only one of the versions with equal digests is resolved.
    source_digest = models.CharField(max_length=64, db_index=True)
    python = models.CharField(max_length=5, help_text="Requested Python version, such as `3.12`.")
    lock = models.TextField(blank=True, help_text="Lock file: packages with exact versions and hashes.")
    digest = models.CharField(max_length=32, blank=True, db_index=True)
    packages = models.JSONField(default=list, blank=True)
    size_mib = models.PositiveBigIntegerField(default=0, help_text="Size in MiB.")
    programs = models.JSONField(default=list, blank=True)
    python_version = models.CharField(
        max_length=20,
        blank=True,
        help_text="Installed Python version, such as `3.12.4`; empty until it is built.",
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
    """An attempt to build a version on a node. `lease` identifies the active command.

    `log` is the bounded end of the output: `log_dropped` characters preceded it, `log_received` is the number
    of characters received. `retry_at` is when this node retries after a failure.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    version = models.ForeignKey(EnvironmentVersion, on_delete=models.CASCADE, related_name="builds")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="environment_builds")
    state = models.CharField(max_length=9, choices=BuildState, default=BuildState.QUEUED)
    # Higher priorities first: builds that users wait for precede builds of the portal.
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
    """Content that nodes may have because the portal built it, by digest. It outlives its environment.

    `unused_since` is set while nothing uses the content; after a while, nodes are asked to remove it. Nodes
    never remove content that the portal did not build.
    """

    digest = models.CharField(max_length=32, primary_key=True)
    unused_since = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.digest


def source_digest_of(kind: str, python: str, source: str) -> str:
    """Return a digest that ignores blank lines and trailing whitespace."""
    lines = [line.rstrip() for line in source.splitlines() if line.strip()]
    return hashlib.sha256(json.dumps([kind, python, lines]).encode()).hexdigest()
