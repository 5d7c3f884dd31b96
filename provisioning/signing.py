"""Signatures of messages between the two planes: they prove sender, receiver, time and integrity.

Each side has its own Ed25519 key, given as 32 bytes in hexadecimal. Every message has a stamp that covers the
task name, arguments, sender, receiver and time.
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
"""Maximum age of a message to a node, and how far in the future any message may be: clocks differ
slightly."""

ANSWER_MAX_AGE_S = 86_400.0
"""Maximum age of a message from a node: messages wait while the control plane is down."""

MAX_REMEMBERED = 100_000
Keys = Mapping[str, Collection[Ed25519PublicKey]]
Short = Annotated[str, Meta(max_length=200)]


class Refusal(StrEnum):
    """Why a message is rejected."""

    UNDECODABLE = "undecodable"
    UNKNOWN_TASK = "unknown_task"
    UNSIGNED = "unsigned"
    UNKNOWN_SENDER = "unknown_sender"
    NOT_FOR_US = "not_for_us"
    FORGED = "forged"
    NOT_ALLOWED = "not_allowed"
    TOO_OLD = "too_old"
    FUTURE = "future"
    REPEATED = "repeated"


class MessageRefused(Exception):
    """A rejected message.

    `sender` is verified for TOO_OLD, FUTURE, NOT_ALLOWED and REPEATED, otherwise only claimed. `off_s` is the
    difference to our time, negative for the past.
    """

    def __init__(self, reason: Refusal, sender: str = "", off_s: float = 0.0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.sender = sender
        self.off_s = off_s


@dataclass(frozen=True, slots=True)
class MessageStamp:
    """Signature of a message with metadata. `to` is a queue name, `at` Unix time, `nonce` unique."""

    sender: Short
    to: Short
    at: Annotated[float, Meta(ge=0, le=1e11)]
    nonce: Short
    signature: Short


class Signer:
    """Signs messages as `sender`. Raises `ValueError` for an invalid key."""

    def __init__(self, sender: str, key: str) -> None:
        self.sender = sender
        self._key = private_key(key)

    def stamp(self, task: str, to: str, body: Any, *, now: float) -> dict[str, Any]:
        """Return the stamp of a message as a dict for JSON; `body` holds the arguments of the task."""
        nonce = secrets.token_hex(16)
        signature = self._key.sign(_signed_bytes(self.sender, to, now, nonce, task, body))
        return asdict(MessageStamp(self.sender, to, now, nonce, base64.b64encode(signature).decode()))


def check(stamp: Any, *, task: str, body: Any, to: Collection[str], keys: Keys) -> MessageStamp:
    """Verify a stamp with the sender's keys and return it. Raises `MessageRefused`."""
    try:
        verified = msgspec.convert(stamp, MessageStamp)
        signature = base64.b64decode(verified.signature, validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError):
        raise MessageRefused(Refusal.UNSIGNED) from None
    sender_keys = keys.get(verified.sender)
    if not sender_keys:
        raise MessageRefused(Refusal.UNKNOWN_SENDER, verified.sender)
    if verified.to not in to:
        raise MessageRefused(Refusal.NOT_FOR_US, verified.sender)
    try:
        signed = _signed_bytes(verified.sender, verified.to, verified.at, verified.nonce, task, body)
    except (TypeError, ValueError, RecursionError):
        raise MessageRefused(Refusal.FORGED, verified.sender) from None
    for key in sender_keys:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            continue
        return verified
    raise MessageRefused(Refusal.FORGED, verified.sender)


def check_age(stamp: MessageStamp, *, now: float, max_age_s: float) -> None:
    """Raise `MessageRefused` if the time of the message is out of bounds.

    A message may be up to `max_age_s` old, or up to `LEEWAY_S` in the future.
    """
    age_s = now - stamp.at
    if age_s > max_age_s:
        raise MessageRefused(Refusal.TOO_OLD, stamp.sender, -age_s)
    if age_s < -LEEWAY_S:
        raise MessageRefused(Refusal.FUTURE, stamp.sender, -age_s)


class ReplayGuard:
    """Remembers received messages as long as they would pass `check_age`."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def once(self, stamp: MessageStamp, *, now: float) -> None:
        """Raise `MessageRefused` if the message was received before."""
        while self._until and (len(self._until) >= MAX_REMEMBERED or next(iter(self._until.values())) < now):
            self._until.popitem(last=False)
        if stamp.nonce in self._until:
            raise MessageRefused(Refusal.REPEATED, stamp.sender)
        self._until[stamp.nonce] = now + 2 * LEEWAY_S


# --- keys -------------------------------------------------------------------------------------------


def private_key(text: str) -> Ed25519PrivateKey:
    """Parse a private key of 64 hexadecimal digits. Raises `ValueError`, which does not quote it."""
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ValueError("a private key has 64 hexadecimal digits; make one with: openssl rand -hex 32")
    return Ed25519PrivateKey.from_private_bytes(raw)


def public_text(key: str) -> str:
    """Return the public key of a private key, both in hexadecimal. Raises `ValueError`."""
    return private_key(key).public_key().public_bytes_raw().hex()


def public_keys(text: str) -> tuple[Ed25519PublicKey, ...]:
    """Parse public keys in hexadecimal, separated by spaces, commas or newlines. Raises `ValueError`."""
    public = []
    for digits in re.split(r"[\s,]+", text.strip()) if text.strip() else ():
        try:
            public.append(Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits)))
        except ValueError:
            raise ValueError(
                f"“{digits[:80]}” is not a public key: a public key has 64 hexadecimal digits"
            ) from None
    return tuple(public)


def sender_of(node_name: str) -> str:
    """Return the name of a node as a sender, which is also its queue name."""
    return f"node.{node_name}"


def node_keys(folder: Path) -> Keys:
    """Return nodes' public keys from `folder` (`<node>.pub`). Raises `ValueError` or `OSError`."""
    if not folder.is_dir():
        return {}
    return {
        sender_of(path.name.removesuffix(".pub")): public_keys(path.read_text())
        for path in sorted(folder.glob("*.pub"))
    }


def _signed_bytes(sender: str, to: str, at: float, nonce: str, task: str, body: Any) -> bytes:
    """Return the signed bytes. JSON of a body is stable across encoding and decoding."""
    text: str = json.dumps(body)  # type: ignore[no-untyped-call]
    digest = hashlib.sha256(text.encode()).hexdigest()
    head: str = json.dumps([sender, to, at, nonce, task, digest])  # type: ignore[no-untyped-call]
    return b"berth message 1\n" + head.encode()
