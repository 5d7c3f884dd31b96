"""Models of machines and join tokens."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class MachineState(models.TextChoices):
    """State of a machine."""

    ACTIVE = "active", _("Joined")
    LEFT = "left", _("Left")
    REVOKED = "revoked", _("Revoked")


class JoinToken(models.Model):
    """A token with which one machine can join `pool`. `digest` is the SHA-256 of its secret."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="join_tokens")
    digest = models.CharField(max_length=64, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    machine = models.ForeignKey(
        "machines.Machine", null=True, blank=True, on_delete=models.SET_NULL, related_name="tokens"
    )

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"token for {self.pool_id}"


class Machine(models.Model):
    """The identity of a machine that has joined. Its node has the same name in `pool`.

    After a rotation, the former signing key, password and certificate stay valid until `former_until`. Keys
    are public keys; passwords are stored as SHA-256 digests. The machine chose `instance` when it joined;
    `machine_id` is a digest of its machine id. `boot`, `former_boot` and other values from heartbeats are
    self-reported.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=63, unique=True)
    pool = models.ForeignKey("inventory.Pool", on_delete=models.CASCADE, related_name="machines")
    state = models.CharField(max_length=8, choices=MachineState, default=MachineState.ACTIVE)
    signing_key = models.CharField(max_length=64)
    password_digest = models.CharField(max_length=64, editable=False)
    certificate_serial = models.CharField(max_length=60)
    certificate_expires_at = models.DateTimeField(
        help_text="When the certificate expires. It is renewed before."
    )
    former_signing_key = models.CharField(max_length=64, blank=True)
    former_password_digest = models.CharField(max_length=64, blank=True, editable=False)
    former_certificate_serial = models.CharField(max_length=60, blank=True)
    former_until = models.DateTimeField(null=True, blank=True)
    gateway_host = models.CharField(max_length=255)
    gateway_port = models.PositiveIntegerField()
    machine_id = models.CharField(max_length=128, db_index=True)
    instance = models.CharField(max_length=128)
    version = models.CharField(max_length=40, help_text="Version of Berth on the machine.")
    clock_off_s = models.FloatField(default=0.0)
    boot = models.CharField(max_length=128, blank=True)
    former_boot = models.CharField(max_length=128, blank=True)
    heard_at = models.DateTimeField(null=True, blank=True, help_text="Time of the last contact.")
    said_s = models.FloatField(default=0.0, help_text=_("Unix time of the machine at its last contact."))
    # Time when another instance of the same identity was last seen.
    cloned_at = models.DateTimeField(null=True, blank=True)
    joined_at = models.DateTimeField(help_text="When it joined.")
    rotated_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the certificate was last renewed; null before the first renewal.",
    )
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def gateway(self) -> str:
        """`host:port` of the gateway to its workspaces."""
        host = f"[{self.gateway_host}]" if ":" in self.gateway_host else self.gateway_host
        return f"{host}:{self.gateway_port}"
