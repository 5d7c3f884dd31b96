"""Rotates this node's keys and certificate, manually or before the certificate expires."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable

from provisioning.host import keys, membership
from provisioning.host.door import Door, NodeProof, RequestRefused
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import Membership
from provisioning.service.console import Problem

log = logging.getLogger(__name__)
BEFORE = dt.timedelta(days=30)
POLL_INTERVAL_S = 60.0
RETRY_AFTER_S = 1800.0
MEMBERSHIP_LOST = frozenset({"not_a_joined_node", "identity_replaced"})


def door_of(folder: NodeFolder, identity: Membership) -> Door:
    """Return the portal's endpoint with this node's credentials. Raises `Problem`."""
    try:
        return Door(
            identity.answer.portal_url, identity.answer.authority, NodeProof(folder.certificate, folder.key)
        )
    except (OSError, ValueError) as error:
        raise Problem(
            f"The node's certificate cannot be used ({error}).",
            "Revoke and remove the machine on its pool's page, run `berth node leave --forget`, join again.",
        ) from error


def rotate(folder: NodeFolder, identity: Membership) -> Membership:
    """Get and save new keys; the old ones stay valid for 10 minutes. Raises `Problem`."""
    new_keys = keys.make(identity.name)
    body = {"csr": new_keys.csr, "signing_key": new_keys.signing_public}
    try:
        answer = door_of(folder, identity).rotate(body)
        keys.check(answer.certificate, new_keys.key, identity.answer.authority)
        if keys.digest_of(answer.authority) != keys.digest_of(identity.answer.authority):
            raise ValueError("the portal has another authority")
    except RequestRefused as refused:
        if refused.code in MEMBERSHIP_LOST:
            raise membership_rejected(identity, str(refused.message)) from refused
        raise
    except ValueError as error:
        raise Problem(
            f"The portal's answer is not valid: {error}.", "Run `berth node rotate` within 10 minutes."
        ) from error
    renewed = identity.renewed(answer, new_keys)
    try:
        membership.save(folder, renewed)
    except OSError as error:
        raise Problem(
            f"The new keys could not be saved ({error.strerror}). The old keys expire in 10 minutes.",
            f"Free some space under {folder.home}, then run `berth node rotate` immediately.",
        ) from error
    return renewed


def membership_rejected(identity: Membership, reason: str) -> Problem:
    """Return the problem that the portal no longer knows this node, or that another node has its name."""
    return Problem(
        f"The portal does not accept this machine as {identity.name}: {reason}",
        "Run `berth node leave --forget` here, then join again with a new token from the pool's page.",
    )


def is_due(identity: Membership, now: dt.datetime | None = None) -> bool:
    """Return whether the certificate ends within 30 days, or is in its last third. Raises `ValueError`."""
    begin, end = keys.validity(identity.answer.certificate)
    return end - (now or dt.datetime.now(dt.UTC)) < min(BEFORE, (end - begin) / 3)


class Renewal:
    """Watches the certificate in a thread, and rotates the keys in time."""

    def __init__(self, folder: NodeFolder, announce: Callable[[str], None]) -> None:
        self._folder = folder
        self._announce = announce
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="renewal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; a running request is not interrupted."""
        self._stop.set()

    def _watch(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            wait_s = POLL_INTERVAL_S
            try:
                identity = membership.load(self._folder)
                if is_due(identity):
                    renewed = rotate(self._folder, identity)
                    self._announce(f"Keys and certificate rotated; valid until {expiry_date(renewed)}.")
            except (Problem, ValueError) as error:
                self._announce(f"The certificate could not be renewed: {error}")
                wait_s = RETRY_AFTER_S


def expiry_date(identity: Membership) -> str:
    """Return the day on which the certificate expires."""
    return keys.validity(identity.answer.certificate)[1].date().isoformat()
