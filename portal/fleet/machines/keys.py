"""Signing keys of joined machines, to verify the senders of messages."""

from __future__ import annotations

from collections.abc import Collection

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.utils import timezone

from portal.fleet.machines.models import Machine, MachineState
from provisioning import signing


class Directory:
    """Directory of senders, used by `portal.celery`."""

    def keys(self) -> signing.Keys:
        """Return public keys by sender. Empty for machines that have left or are revoked."""
        now = timezone.now()
        rows = Machine.objects.values_list(
            "name", "state", "signing_key", "former_signing_key", "former_until"
        )
        keys_by_sender: dict[str, Collection[Ed25519PublicKey]] = {}
        for name, state, key, former, until in rows:
            texts = [key] if state == MachineState.ACTIVE else []
            if texts and former and until and until > now:
                texts.append(former)
            keys_by_sender[signing.sender_of(name)] = signing.public_keys(" ".join(texts))
        return keys_by_sender

    def refuses(self, sender: str) -> bool:
        """Return whether this sender is a machine that is no longer trusted, even if its row was deleted.

        A deleted machine leaves a retired node or nothing. Even keys that a process has cached are rejected
        then.
        """
        name = sender.removeprefix(signing.sender_of(""))
        state = Machine.objects.filter(name=name).values_list("state", flat=True).first()
        if state is not None:
            return state != MachineState.ACTIVE
        return not _has_key_file(name)


def _has_key_file(name: str) -> bool:
    """Return whether the node is trusted by a key file: local nodes and containers have no row."""
    return (settings.BERTH_NODE_KEYS_DIR / f"{name}.pub").is_file()


directory = Directory()
