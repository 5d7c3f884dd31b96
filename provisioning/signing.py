"""Signatures of what the two planes send each other: who sent it, to whom, when, and that nobody changed it.

Each side has an Ed25519 key of its own, given as its 32 bytes in hexadecimal. A stamp goes with every message
and covers the name of its task, its arguments, the sender, the receiver and the time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from kombu.utils import json
from msgspec import Meta

CONTROL = "control"
"""The control plane as a sender; a node is `node.<name>`."""

LEEWAY_S = 120.0
"""How old a message to a node may be, and how far in the future any message: clocks are never quite alike."""

ANSWER_MAX_AGE_S = 86_400.0
"""How old what a node has sent may be: it waits while the control plane is away."""

SEEN_AT_MOST = 100_000
Keys = Mapping[str, Collection[Ed25519PublicKey]]
Short = Annotated[str, Meta(max_length=200)]


class Refusal(StrEnum):
    """Why a message does not count."""

    UNSIGNED = "unsigned"
    UNKNOWN_SENDER = "unknown_sender"
    NOT_FOR_US = "not_for_us"
    FORGED = "forged"
    NOT_ALLOWED = "not_allowed"
    TOO_OLD = "too_old"
    FUTURE = "future"
    REPEATED = "repeated"


class Refused(Exception):
    """A message is dropped.

    `sender` is proven for TOO_OLD, FUTURE, NOT_ALLOWED and REPEATED, else claimed. `off_s` is how far its
    time is from ours, negative for the past.
    """

    def __init__(self, reason: Refusal, sender: str = "", off_s: float = 0.0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.sender = sender
        self.off_s = off_s


@dataclass(frozen=True, slots=True)
class Stamp:
    """What goes with a message. `to` is the name of a queue, `at` unix time, `nonce` used once."""

    sender: Short
    to: Short
    at: Annotated[float, Meta(ge=0, le=1e11)]
    nonce: Short
    signature: Short


class Signer:
    """Stamps messages in the name of `sender`. Raises `ValueError` for what is no key."""

    def __init__(self, sender: str, key: str) -> None:
        self.sender = sender
        self._key = private_key(key)

    def stamp(self, task: str, to: str, body: Any, *, now: float) -> dict[str, Any]:
        """The stamp of a message as JSON takes it; `body` is what the task is called with."""
        nonce = secrets.token_hex(16)
        signature = self._key.sign(_signed(self.sender, to, now, nonce, task, body))
        return asdict(Stamp(self.sender, to, now, nonce, base64.b64encode(signature).decode()))


def check(stamp: Any, *, task: str, body: Any, to: Collection[str], keys: Keys) -> Stamp:
    """The stamp, if one of the sender's keys has made it for this message. Raises `Refused`."""
    try:
        found = msgspec.convert(stamp, Stamp)
        signature = base64.b64decode(found.signature, validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError):
        raise Refused(Refusal.UNSIGNED) from None
    known = keys.get(found.sender)
    if not known:
        raise Refused(Refusal.UNKNOWN_SENDER, found.sender)
    if found.to not in to:
        raise Refused(Refusal.NOT_FOR_US, found.sender)
    try:
        signed = _signed(found.sender, found.to, found.at, found.nonce, task, body)
    except (TypeError, ValueError, RecursionError):
        raise Refused(Refusal.FORGED, found.sender) from None
    for key in known:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            continue
        return found
    raise Refused(Refusal.FORGED, found.sender)


def check_age(stamp: Stamp, *, now: float, max_age_s: float) -> None:
    """Raises `Refused` for what is too old, or further in the future than `LEEWAY_S`."""
    age_s = now - stamp.at
    if age_s > max_age_s:
        raise Refused(Refusal.TOO_OLD, stamp.sender, -age_s)
    if age_s < -LEEWAY_S:
        raise Refused(Refusal.FUTURE, stamp.sender, -age_s)


class Seen:
    """Remembers which messages have come, as long as they would pass `check_age`."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def once(self, stamp: Stamp, *, now: float) -> None:
        """Raises `Refused` for a message that has come before."""
        while self._until and (len(self._until) >= SEEN_AT_MOST or next(iter(self._until.values())) < now):
            self._until.popitem(last=False)
        if stamp.nonce in self._until:
            raise Refused(Refusal.REPEATED, stamp.sender)
        self._until[stamp.nonce] = now + 2 * LEEWAY_S


# --- keys -------------------------------------------------------------------------------------------


def private_key(text: str) -> Ed25519PrivateKey:
    """The key of 64 hexadecimal digits. Raises `ValueError`, which does not quote it."""
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ValueError("a private key has 64 hexadecimal digits; make one with: openssl rand -hex 32")
    return Ed25519PrivateKey.from_private_bytes(raw)


def public_text(key: str) -> str:
    """The public key to a private one, both in hexadecimal. Raises `ValueError`."""
    return private_key(key).public_key().public_bytes_raw().hex()


def public_keys(text: str) -> tuple[Ed25519PublicKey, ...]:
    """Public keys in hexadecimal, with spaces, commas or lines between them. Raises `ValueError`."""
    found = []
    for word in re.split(r"[\s,]+", text.strip()) if text.strip() else ():
        try:
            found.append(Ed25519PublicKey.from_public_bytes(bytes.fromhex(word)))
        except ValueError:
            raise ValueError(f"“{word[:80]}” is no public key: it has 64 hexadecimal digits") from None
    return tuple(found)


def sender_of(node_name: str) -> str:
    """A node as a sender, which is the name of its queue too."""
    return f"node.{node_name}"


def node_keys(folder: Path) -> Keys:
    """The nodes whose public keys lie in `folder`, as `<node>.pub`. Raises `ValueError` or `OSError`."""
    if not folder.is_dir():
        return {}
    return {
        sender_of(path.name.removesuffix(".pub")): public_keys(path.read_text())
        for path in sorted(folder.glob("*.pub"))
    }


def _signed(sender: str, to: str, at: float, nonce: str, task: str, body: Any) -> bytes:
    """The bytes that are signed. A body reads the same before it is sent and after it has been read."""
    text: str = json.dumps(body)  # type: ignore[no-untyped-call]
    digest = hashlib.sha256(text.encode()).hexdigest()
    head: str = json.dumps([sender, to, at, nonce, task, digest])  # type: ignore[no-untyped-call]
    return b"berth message 1\n" + head.encode()
