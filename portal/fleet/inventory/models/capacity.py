"""Models of pools, nodes and accelerators."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common.names import location_validator, slug_validator
from provisioning.registry import traits_of
from provisioning.traits import Plane, Traits
from provisioning.types import Capability, DeviceKind, Isolation, LimitEnforcement


class PoolState(models.TextChoices):
    """Whether the pool's driver answers."""

    UNKNOWN = "unknown", _("No report yet")
    ONLINE = "online", _("Online")
    UNREACHABLE = "unreachable", _("Unreachable")


class PlacementPolicy(models.TextChoices):
    """Order of preference among suitable nodes; see `portal.scheduling.engine.placement.scoring`."""

    FRAGMENTATION = "fragmentation", _("Least fragmentation")
    BEST_FIT = "best_fit", _("Fullest node first")
    SPREAD = "spread", _("Emptiest node first")


class RebalancingPolicy(models.TextChoices):
    """Whether a pool's running work may move to better placements, and who decides."""

    SITE = "site", _("Site setting")
    OFF = "off", _("Off: no proposals")
    PROPOSE = "propose", _("Propose: an operator decides")
    AUTOMATIC = "automatic", _("Automatic for preemptible work")


class CheckLevel(models.TextChoices):
    """Thoroughness of a GPU check, as in `provisioning.gpu.check`."""

    QUICK = "quick", _("Quick, seconds")
    STANDARD = "standard", _("Standard, 1 minute")
    EXTENDED = "extended", _("Extended, many minutes")


class CordonCause(models.TextChoices):
    """Cause of a cordon. A passing check lifts only cordons set by a check."""

    OPERATOR = "operator", _("Operator")
    CHECK = "check", _("GPU check")
    SCRUB = "scrub", _("Scrub")


class Pool(models.Model):
    """Capacity managed by one driver."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.CharField(max_length=40, validators=[slug_validator])
    name = models.CharField(max_length=80)
    driver = models.CharField(max_length=40, help_text="Driver of the pool, such as `local` or `kubernetes`.")
    config = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False, editable=False)
    enabled = models.BooleanField(default=True)
    state = models.CharField(max_length=12, choices=PoolState, default=PoolState.UNKNOWN)
    state_message = models.TextField(blank=True, help_text="Why it is in this state, in words.")
    capabilities = models.JSONField(default=list, blank=True)
    # Units in use by jobs of others at an engine that places by itself, by model, as of `inventory_at`.
    used_by_others = models.JSONField(default=dict, blank=True, editable=False)
    placement_policy = models.CharField(
        max_length=16,
        choices=PlacementPolicy,
        default=PlacementPolicy.FRAGMENTATION,
        help_text="Whether to pack work onto few nodes or spread it over all.",
    )
    rebalancing = models.CharField(
        max_length=10,
        choices=RebalancingPolicy,
        default=RebalancingPolicy.SITE,
        help_text="Whether running work moves to better places; `site` uses the site's setting.",
    )
    # Intervals of device checks, in hours. 0 means never.
    check_every_hours = models.PositiveIntegerField(default=168)
    check_level = models.CharField(max_length=10, choices=CheckLevel, default=CheckLevel.STANDARD)
    hand_out_max_age_hours = models.PositiveIntegerField(default=24)
    # Whether a device is kept back if its check or scrub could not run. If not, unchecked devices and devices
    # with memory that was not scrubbed can be allocated.
    check_required = models.BooleanField(default=True)
    scrub_required = models.BooleanField(default=True)
    # Whether a start may destroy idle MIG instances and create others.
    mig_repartition = models.BooleanField(default=False)
    inventory_due_at = models.DateTimeField(null=True, blank=True)
    inventory_at = models.DateTimeField(
        null=True, blank=True, help_text="Time of the last inventory; null before the first."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)
    # No new placements; running workspaces continue.
    retiring = models.BooleanField(default=False, help_text="Whether it is being emptied before removal.")
    # The row stays for the records about its workspaces. The slug can be reused.
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.UniqueConstraint(
                fields=["slug"],
                condition=models.Q(deleted_at=None),
                name="pool_slug_unique",
                violation_error_message=_("Slug already in use. Choose another."),
            )
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def takes_work(self) -> bool:
        """Whether workspaces may be placed in the pool."""
        return self.enabled and not self.retiring

    @property
    def repartitions(self) -> bool:
        """Whether the MIG layout may be changed: permitted by the pool and supported by its driver."""
        return self.mig_repartition and Capability.REPARTITION in self.capabilities

    @property
    def traits(self) -> Traits:
        """The traits that the pool's driver declares, such as which operations it supports."""
        return traits_of(self.driver)

    @property
    def runs_on_node(self) -> bool:
        """Whether the pool's driver runs in the workers of its nodes."""
        return self.traits.plane is Plane.NODE


class Node(models.Model):
    """A host. `online` comes from the inventory; `cordoned` is set by an operator."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=120)
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(default=0)
    disk_mib = models.PositiveBigIntegerField(default=0, help_text="Disk space in MiB.")
    isolation = models.CharField(
        max_length=12,
        choices=[(item.value, item.value) for item in Isolation],
        default=Isolation.NONE.value,
        help_text="Isolation between workspaces.",
    )
    limits = models.CharField(
        max_length=12,
        choices=[(item.value, item.value) for item in LimitEnforcement],
        default=LimitEnforcement.NONE.value,
        help_text="Resource limits that it can enforce.",
    )
    # Resources with an enforced limit per workspace; values of `LimitedResource`.
    limited = models.JSONField(default=list, blank=True)
    programs = models.JSONField(default=dict, blank=True)
    accelerator_note = models.TextField(
        blank=True,
        help_text="Why its accelerators cannot be used, in words; empty if they can.",
    )
    # For placement: features (`rdma`, `memory_tier:cxl`, …), labels and location.
    provides = models.JSONField(default=list, blank=True)
    # Installed software environments: `digest`, `size_mib`, `programs` (`held_environments`).
    environments = models.JSONField(default=list, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    # Set by operators, never by inventories (`locations`).
    rack = models.CharField(
        max_length=63,
        blank=True,
        validators=[location_validator],
        help_text="Name of the rack; empty if unknown.",
    )
    block = models.CharField(
        max_length=63,
        blank=True,
        validators=[location_validator],
        help_text="Name of the block of racks; empty if unknown.",
    )
    driver_version = models.CharField(
        max_length=40, blank=True, help_text="Version of the GPU driver; empty without a driver."
    )
    cuda_version = models.CharField(
        max_length=20,
        blank=True,
        help_text="Newest CUDA version that the driver supports; empty without a driver.",
    )
    accelerator_state = models.CharField(max_length=30, blank=True)
    facts = models.JSONField(default=dict, blank=True)
    warnings = models.JSONField(default=list, blank=True)
    online = models.BooleanField(default=False, help_text="Whether the node is online.")
    cordoned = models.BooleanField(
        default=False, help_text="Whether it is cordoned: no new work is placed on it."
    )
    cordon_reason = models.TextField(blank=True, help_text="Why it is cordoned, in words.")
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When it was last seen.")
    # Removed permanently. The row stays for the records about its workspaces, but is never shown.
    retired = models.BooleanField(default=False)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["pool", "name"], name="node_unique")]

    def __str__(self) -> str:
        return self.name

    @property
    def version_state(self) -> tuple[object, ...]:
        """The fields that operators can edit; inventories change the rest."""
        return (self.pk, self.rack, self.block)

    @property
    def location(self) -> tuple[str, str]:
        """Rack and block, which placement uses to keep multi-node requests close together."""
        return (self.rack, self.block)


class Device(models.Model):
    """An accelerator, identified by its UUID. `present` comes from the last inventory."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    uuid = models.CharField(max_length=80, unique=True, help_text="UUID of the accelerator, from its driver.")
    index = models.PositiveIntegerField(default=0, help_text="Index on its node, from 0.")
    model = models.CharField(max_length=80)
    memory_mib = models.PositiveIntegerField(default=0)
    kind = models.CharField(
        max_length=8,
        choices=[(item.value, item.value) for item in DeviceKind],
        default=DeviceKind.GPU.value,
        help_text="Whether it is a whole GPU or a MIG instance.",
    )
    parent_uuid = models.CharField(
        max_length=80,
        blank=True,
        help_text="UUID of the GPU of a MIG instance; empty for a whole GPU.",
    )
    mig_mode = models.BooleanField(default=False, help_text="Whether it is partitioned into MIG instances.")
    mig_profile = models.CharField(max_length=40, blank=True, help_text="MIG profile, such as `1g.10gb`.")
    mig_start = models.IntegerField(default=-1)
    island = models.CharField(max_length=40, blank=True)
    numa = models.IntegerField(default=-1)
    compute_capability = models.CharField(
        max_length=8, blank=True, help_text="CUDA compute capability, such as `9.0`; empty if unknown."
    )
    facts = models.JSONField(default=dict, blank=True)
    cordoned = models.BooleanField(
        default=False, help_text="Whether it is cordoned: no new work is placed on it."
    )
    cordon_reason = models.TextField(blank=True, help_text="Why it is cordoned, in words.")
    cordon_cause = models.CharField(max_length=10, choices=CordonCause, blank=True)
    # `recovery`: action that returns the device to service, from `provisioning.gpu.check`. `warning`: finding
    # of a check that does not prevent work.
    recovery = models.CharField(max_length=20, blank=True)
    warning = models.TextField(blank=True)
    # The device is being checked or scrubbed, so nothing is placed on it.
    checking = models.BooleanField(default=False)
    # A workspace with a share has left while other workspaces stayed, and the device was not scrubbed since
    # then. Not allocatable until it is empty and a scrub has found its memory clean.
    unscrubbed = models.BooleanField(default=False)
    passed_at = models.DateTimeField(null=True, blank=True)
    # Free memory after the last scrub. Less free memory the next time indicates a leak.
    clean_free_mib = models.PositiveIntegerField(null=True, blank=True)
    # After a failed change of the MIG layout, no other change is planned before this time.
    layout_fixed_until = models.DateTimeField(null=True, blank=True)
    healthy = models.BooleanField(default=True, help_text="Whether it is healthy.")
    health_note = models.TextField(blank=True, help_text="Known problem, in words; empty for none.")
    present = models.BooleanField(default=True, help_text="Whether its node still reports it.")

    class Meta:
        ordering = ["node", "index"]

    def __str__(self) -> str:
        return self.uuid
