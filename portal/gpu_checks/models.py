"""Models of runs on GPUs: checks, scrubs, resets and changes of MIG layouts."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from portal.fleet.inventory.models.capacity import CheckLevel, Device


class CheckKind(models.TextChoices):
    CHECK = "check", _("GPU check")
    SCRUB = "scrub", _("Scrub")
    REPARTITION = "repartition", _("Change of MIG layout")
    RESET = "reset", _("Reset")
    PAIR = "pair", _("Link to another node")
    JOINT = "joint", _("All GPUs of a node at once")


class CheckCause(models.TextChoices):
    """Cause of a run."""

    SCHEDULE = "schedule", _("On schedule")
    NEW = "new", _("New device")
    RETURNED = "returned", _("Device returned")
    HAND_OUT = "hand_out", _("Before a start")
    RECLAIM = "reclaim", _("After reclaim")
    OPERATOR = "operator", _("Requested")
    RECHECK = "recheck", _("Repeat")


class RunState(models.TextChoices):
    QUEUED = "queued", _("Queued")
    RUNNING = "running", _("Running")
    DONE = "done", _("Done")
    LOST = "lost", _("Lost")


OPEN = (RunState.QUEUED, RunState.RUNNING)


class CheckVerdict(models.TextChoices):
    """The verdicts of `provisioning.gpu.check`; a clean scrub is a pass."""

    PASS = "pass", _("Passed")
    DEGRADED = "degraded", _("Degraded")
    FAIL = "fail", _("Failed")
    INCONCLUSIVE = "inconclusive", _("Inconclusive")
    HUNG = "hung", _("Hung")


class GpuCheckRun(models.Model):
    """A check, scrub or reset of a device, one end of a link check, or a change of a MIG layout.

    A device has at most one open run. `report` is the result in the published schema; `measures` are its
    judged figures by name with their limits, for trends. Runs in simulated pools are marked `simulated` and
    say nothing about hardware. `plan` is the layout change (`destroy` and `create`) or, in a link check, the
    address where both ends meet. `unjudged` means that only figures without a known limit prevented a pass.
    `peers` are idle devices whose links are measured or, in a joint check, the other GPUs under load; they
    are reserved while the run is open. `partner` is the run at the other end of a link between two nodes.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="checks")
    kind = models.CharField(max_length=12, choices=CheckKind, default=CheckKind.CHECK)
    level = models.CharField(max_length=10, choices=CheckLevel, default=CheckLevel.QUICK)
    cause = models.CharField(max_length=10, choices=CheckCause)
    state = models.CharField(max_length=8, choices=RunState, default=RunState.QUEUED)
    verdict = models.CharField(max_length=14, choices=CheckVerdict, blank=True)
    recovery = models.CharField(max_length=20, blank=True)
    summary = models.TextField(blank=True, help_text="Result in a sentence; empty until the run is done.")
    simulated = models.BooleanField(default=False)
    requester = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # The workspace that waits for this preflight check.
    workspace = models.ForeignKey(
        "workspaces.Workspace", on_delete=models.SET_NULL, null=True, blank=True, related_name="checks"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="When it began.")
    finished_at = models.DateTimeField(null=True, blank=True, help_text="When it ended.")
    plan = models.JSONField(default=dict, blank=True)
    unjudged = models.BooleanField(default=False)
    progress = models.JSONField(default=dict, blank=True)
    report = models.JSONField(default=dict, blank=True)
    measures = models.JSONField(default=dict, blank=True)
    peers = models.ManyToManyField(Device, related_name="peer_checks", blank=True)
    partner = models.OneToOneField("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    lease = models.CharField(max_length=32, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["device"],
                condition=Q(state__in=[RunState.QUEUED, RunState.RUNNING]),
                name="one_open_check_per_device",
            ),
        ]
        indexes = [
            models.Index(fields=["device", "-created_at"], name="check_by_device"),
            models.Index(
                fields=["lease_expires_at"],
                condition=Q(state__in=[RunState.QUEUED, RunState.RUNNING]),
                name="check_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.device_id}"

    @property
    def open(self) -> bool:
        return self.state in OPEN
