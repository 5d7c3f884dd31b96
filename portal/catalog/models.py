"""Models of the catalog: templates (what to run) and flavors (sizes)."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common.names import slug_validator
from provisioning.git_urls import MAX_REF, MAX_URL
from provisioning.types import Within

TEAM_SIGN = "_"
"""Separates a team's slug from its template's slug. Not valid in other slugs."""
MAX_TIMEOUT_S = 3600
LARGEST = 2**31 - 1
"""Maximum integer supported by all databases."""
MIN_EXPECTED_HOURS, MAX_EXPECTED_HOURS = 1 / 60, 30 * 24
MAX_LIFETIME_H = 366 * 24
MAX_PRICE_CENTS = 100_000_000
MAX_NODES = 64
MAX_ACCELERATORS = 64

template_slug_validator = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:_[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)?\Z",
    _("Use lower-case letters, digits and hyphens. Start and end with a letter or digit."),
)


class UpstreamAuth(models.TextChoices):
    """How the gateway authenticates to the app with its token."""

    NONE = "none", _("None")
    BEARER = "bearer", _("Authorization: Bearer …")
    CODE_SERVER = "code-server", _("Cookie of code-server")


class Activity(models.TextChoices):
    """How the agent queries the app's activity. The agent measures CPU, GPUs and commands for every app."""

    UNKNOWN = "", _("None: only CPU, GPUs and commands")
    JUPYTER = "jupyter", _("Jupyter: kernels and terminals")
    MARIMO = "marimo", _("marimo")
    CODE_SERVER = "code-server", _("code-server")


class WorkLost(models.TextChoices):
    """When a preemption loses the work of a workspace. Files are always kept."""

    ALWAYS = "always", _("Always: work starts over, as for a batch job")
    ACCELERATED = "accelerated", _("With accelerators: work on them starts over")
    NEVER = "never", _("Never: work continues from its files")


class TemplateEgress(models.TextChoices):
    """Egress policy of a template's workspaces. It can only restrict what pool and node allow."""

    POOL = "", _("As the pool allows")
    LIST = "list", _("Only listed hosts")
    NONE = "none", _("Nothing")


SCRIPT_THEN_EXEC = '/bin/sh -c "$1" || exit $?; shift; exec "$@"'
"""Runs the first argument as a script, then executes the other arguments as a program."""
COMPUTE_CAPABILITIES = (
    "7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1",
)  # fmt: skip


class Bond(models.TextChoices):
    """What a flavor's accelerators must share. Values are those of `Within`."""

    NODE = Within.NODE.value, _("Same node")
    NUMA = Within.NUMA.value, _("Same NUMA node")
    ISLAND = Within.ISLAND.value, _("Same NVLink island")


class Entry(models.Model):
    """Common fields of templates and flavors.

    A deleted entry is kept for its workspaces; its slug can then be reused. An entry that is not `enabled` is
    not offered; existing workspaces can still start. If `restricted`, only `teams` may use it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    enabled = models.BooleanField(default=True)
    position = models.PositiveIntegerField(
        default=100,
        validators=[MaxValueValidator(LARGEST)],
        help_text="Position in lists, lowest first.",
    )
    restricted = models.BooleanField(default=False)
    deprecated = models.BooleanField(
        default=False, help_text=_("Still available, but marked. The successor is suggested instead.")
    )
    default_lifetime_hours = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_LIFETIME_H)],
        help_text=_("Default hours until a workspace stops; 0: no end."),
    )
    max_lifetime_hours = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_LIFETIME_H)],
        help_text=_("Maximum hours, extensions included; 0: no end."),
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        abstract = True


class Template(Entry):
    """A program to run in a workspace.

    `argv`, `env` and `startup` may contain the placeholders of `provisioning.types.AppSpec`. A template with
    a `team` belongs to that team: its owners manage it, and it is invisible to others.
    """

    slug = models.CharField(max_length=81, validators=[template_slug_validator])
    team = models.ForeignKey(
        "accounts.Team", null=True, blank=True, on_delete=models.PROTECT, related_name="templates"
    )
    teams = models.ManyToManyField("accounts.Team", blank=True, related_name="offered_templates")
    successor = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="predecessors"
    )
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200, blank=True)
    icon = models.CharField(max_length=40, blank=True, help_text=_("Name of a symbol in the icon sprite."))
    program = models.CharField(
        max_length=80, help_text=_("Program that a node must have, as reported by its inventory.")
    )
    install_hint = models.CharField(
        max_length=200, blank=True, help_text=_("Instructions for operators if the program is missing.")
    )
    # Required CUDA version of the driver, and minimum compute capability; empty: any.
    min_cuda = models.CharField(
        max_length=6,
        blank=True,
        validators=[RegexValidator(r"^1[1-9]\.\d{1,2}$", _("Enter a version such as 12.4."))],
        help_text=_("CUDA version of the image or environment, such as 12.4."),
    )
    min_compute_capability = models.CharField(
        max_length=5,
        blank=True,
        choices=[(version, version) for version in COMPUTE_CAPABILITIES],
        help_text=_("Minimum for a device."),
    )
    # Default software environment of its workspaces; None for software installed on nodes.
    environment = models.ForeignKey(
        "environments.Environment", null=True, blank=True, on_delete=models.SET_NULL, related_name="templates"
    )
    argv = models.JSONField(default=list)
    env = models.JSONField(default=dict, blank=True)
    startup = models.TextField(
        blank=True,
        max_length=8000,
        help_text=_(
            "Shell script that runs before the program, in the same sandbox. If it fails, the start fails."
        ),
    )
    ready_path = models.CharField(
        max_length=200, default="/", help_text="Path that responds once the program is ready."
    )
    open_path = models.CharField(max_length=200, default="/", help_text="Path that opens in the browser.")
    upstream_auth = models.CharField(
        max_length=20,
        choices=UpstreamAuth,
        default=UpstreamAuth.NONE,
        help_text="Credentials that the front door adds to requests to the program.",
    )
    service_workers = models.BooleanField(
        default=False,
        help_text=_("Whether the app may install service workers, which outlive the page and a restart."),
    )
    egress = models.CharField(
        max_length=4,
        blank=True,
        choices=TemplateEgress,
        help_text=_("Maximum network access of workspaces."),
    )
    egress_allow = models.TextField(
        blank=True,
        max_length=4000,
        help_text=_("Hosts such as packages.example or *.example.org, and networks such as 10.1.0.0/16."),
    )
    git_url = models.CharField(
        max_length=MAX_URL,
        blank=True,
        help_text=_("Git repository that workspaces clone, unless they set another."),
    )
    git_ref = models.CharField(
        max_length=MAX_REF,
        blank=True,
        help_text="Branch, tag or commit of the repository; empty for the default branch.",
    )
    git_secret = models.CharField(
        max_length=64,
        blank=True,
        help_text=_("Secret of the template or team with access to the repository."),
    )
    dotfiles_url = models.CharField(
        max_length=MAX_URL,
        blank=True,
        help_text=_("Dotfiles for users without their own."),
    )
    mounts = models.JSONField(
        default=list,
        blank=True,
        help_text=_("Node folders, mounted at /data/NAME; NAME:rw allows writing."),
    )
    activity = models.CharField(
        max_length=20,
        blank=True,
        choices=Activity,
        help_text=_("How the agent queries the activity of the app."),
    )
    start_timeout_s = models.PositiveIntegerField(
        default=120,
        validators=[MinValueValidator(5), MaxValueValidator(MAX_TIMEOUT_S)],
        help_text="Maximum duration of a start, in seconds.",
    )
    stop_timeout_s = models.PositiveIntegerField(
        default=10,
        validators=[MaxValueValidator(300)],
        help_text="Grace period for the program to stop, in seconds.",
    )
    work_lost = models.CharField(
        max_length=12,
        choices=WorkLost,
        default=WorkLost.ALWAYS,
        help_text=_("When a preemption loses work. Users can override this."),
    )

    class Meta:
        ordering = ["position", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["slug"],
                condition=models.Q(deleted_at=None),
                name="template_slug_unique",
                violation_error_message=_("Slug already in use. Choose another."),
            )
        ]

    def __str__(self) -> str:
        return self.name

    def offered_to(self, team_id: uuid.UUID) -> bool:
        """Return whether the team may use the template. Prefetch `teams`."""
        if self.team_id is not None:
            return self.team_id == team_id
        return not self.restricted or any(team.pk == team_id for team in self.teams.all())

    @property
    def command(self) -> tuple[str, ...]:
        """The command for the agent: the program, after the startup script if any."""
        if not self.startup:
            return tuple(self.argv)
        return ("/bin/sh", "-c", SCRIPT_THEN_EXEC, "startup", self.startup, *self.argv)

    def loses_work_on(self, flavor: Flavor) -> bool:
        """Return whether preemption on this flavor loses work. The flavor's setting takes precedence."""
        rule = flavor.work_lost or self.work_lost
        return rule == WorkLost.ALWAYS or (rule == WorkLost.ACCELERATED and flavor.accelerator_count > 0)


class Flavor(Entry):
    """A size. With `pool`, it is available only there. Simulated pools have only their own flavors."""

    slug = models.CharField(max_length=60, validators=[slug_validator])
    teams = models.ManyToManyField("accounts.Team", blank=True, related_name="offered_flavors")
    successor = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="predecessors"
    )
    name = models.CharField(max_length=80)
    description = models.CharField(max_length=200, blank=True)
    cpu_milli = models.PositiveIntegerField(validators=[MinValueValidator(100), MaxValueValidator(LARGEST)])
    memory_mib = models.PositiveIntegerField(validators=[MinValueValidator(128), MaxValueValidator(LARGEST)])
    disk_mib = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(LARGEST)])
    nodes = models.PositiveIntegerField(
        default=1, validators=[MinValueValidator(1), MaxValueValidator(MAX_NODES)]
    )
    accelerator_count = models.PositiveIntegerField(
        default=0, validators=[MaxValueValidator(MAX_ACCELERATORS)]
    )
    accelerator_model = models.CharField(max_length=80, blank=True)
    accelerator_models = models.JSONField(
        default=list, blank=True, help_text=_("Several suitable models, instead of one.")
    )
    accelerator_memory_mib = models.PositiveIntegerField(
        default=0,
        validators=[MaxValueValidator(LARGEST)],
        help_text=_("Minimum memory of a device; for a share, its memory."),
    )
    accelerator_milli = models.PositiveIntegerField(
        default=1000, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    mig_profile = models.CharField(
        max_length=40, blank=True, help_text=_("MIG instances of this profile, e.g. 1g.10gb.")
    )
    within = models.CharField(
        max_length=10,
        choices=Bond,
        default=Bond.NODE,
        help_text=_("Topology that several accelerators must share. Closer placements are always preferred."),
    )
    preemptible = models.BooleanField(
        default=True, help_text=_("Can be preempted after the minimum run time, with notice.")
    )
    work_lost = models.CharField(
        max_length=12,
        choices=WorkLost,
        blank=True,
        help_text=_("When a preemption loses work of this size; empty: as the template."),
    )
    expected_hours = models.FloatField(
        default=8,
        validators=[MinValueValidator(MIN_EXPECTED_HOURS), MaxValueValidator(MAX_EXPECTED_HOURS)],
        help_text=_("Expected run time, for estimates."),
    )
    price_cents = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_PRICE_CENTS)],
        help_text=_("Price per hour with its accelerators, in hundredths of the site's currency."),
    )
    pool = models.ForeignKey(
        "inventory.Pool", null=True, blank=True, on_delete=models.CASCADE, related_name="flavors"
    )

    class Meta:
        ordering = ["position", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["slug"],
                condition=models.Q(deleted_at=None),
                name="flavor_slug_unique",
                violation_error_message=_("Slug already in use. Choose another."),
            ),
            models.CheckConstraint(
                condition=models.Q(mig_profile="") | models.Q(within=Bond.NODE),
                name="flavor_mig_has_no_bond",
                violation_error_message=_("MIG instances can only share the node. Choose “Same node”."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def offered_to(self, team_id: uuid.UUID) -> bool:
        """Return whether the team may use the flavor. Prefetch `teams`."""
        return not self.restricted or any(team.pk == team_id for team in self.teams.all())

    @property
    def simulated(self) -> bool:
        return self.pool is not None and self.pool.simulated

    def as_request(self) -> dict[str, Any]:
        """Return the JSON form of `provisioning.types.ResourceRequest`, stored with each workspace."""
        return {
            "cpu_milli": self.cpu_milli,
            "memory_mib": self.memory_mib,
            "disk_mib": self.disk_mib,
            "nodes": self.nodes,
            "accelerators": {
                "count": self.accelerator_count,
                "model": self.accelerator_model,
                "share_milli": self.accelerator_milli,
                "memory_mib": self.accelerator_memory_mib,
                "mig_profile": self.mig_profile,
                "within": self.within,
                **({"models": list(self.accelerator_models)} if self.accelerator_models else {}),
            },
        }
