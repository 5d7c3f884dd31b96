"""The machines that have joined as senders of messages: their rows say whose signature counts."""

from __future__ import annotations

from collections.abc import Collection

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.utils import timezone

from portal.fleet.machines.models import Machine, MachineState
from provisioning import signing


class Directory:
    """What `portal.celery` asks."""

    def keys(self) -> signing.Keys:
        """Public keys by sender; none for a machine that has left or is revoked."""
        now = timezone.now()
        rows = Machine.objects.values_list(
            "name", "state", "signing_key", "former_signing_key", "former_until"
        )
        found: dict[str, Collection[Ed25519PublicKey]] = {}
        for name, state, key, former, until in rows:
            texts = [key] if state == MachineState.ACTIVE else []
            if texts and former and until and until > now:
                texts.append(former)
            found[signing.sender_of(name)] = signing.public_keys(" ".join(texts))
        return found

    def refuses(self, sender: str) -> bool:
        """Whether the machine of this name has joined and does not count any more, its row removed or not.

        Of a machine that was removed its retired node is left, or nothing: keys that a process still
        remembers do not count then.
        """
        name = sender.removeprefix(signing.sender_of(""))
        state = Machine.objects.filter(name=name).values_list("state", flat=True).first()
        if state is not None:
            return state != MachineState.ACTIVE
        return not _has_key_file(name)


def _has_key_file(name: str) -> bool:
    """Whether a node is believed by a file: those of this machine and of containers have no row."""
    return (settings.BERTH_NODE_KEYS_DIR / f"{name}.pub").is_file()


directory = Directory()
