"""A node's identity, stored atomically in one file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from provisioning import redis_client
from provisioning.host.folder import NodeFolder
from provisioning.host.keys import NewKeys
from provisioning.machine_id import machine_id as machine_id
from provisioning.service.console import Problem
from provisioning.service.files import write_file


class RedisAccess(msgspec.Struct, frozen=True):
    """Connection parameters of the portal's Redis."""

    host: str
    port: int
    user: str
    password: str
    server_name: str


class JoinAnswer(msgspec.Struct, frozen=True):
    """The portal's answer to a machine that joins or has rotated its keys."""

    node: str
    pool: str
    certificate: str
    authority: str
    front_door_name: str
    redis: RedisAccess
    control_key: str
    portal_url: str
    domain: str
    expires_at: str


class Membership(msgspec.Struct, frozen=True):
    """A node's identity. `gateway_port` is the port of its gateway; `machine_id` identifies this machine."""

    answer: JoinAnswer
    key: str
    signing_key: str
    gateway_port: int
    machine_id: str
    instance: str
    version: str
    user: int

    @property
    def name(self) -> str:
        return self.answer.node

    def redis_url(self, folder: NodeFolder) -> str:
        """Return the URL of Redis over TLS, with the files written by `save`."""
        access = self.answer.redis
        tls = redis_client.TLS(folder.authority, folder.certificate, folder.key, access.server_name)
        return redis_client.url(
            host=access.host, port=access.port, user=access.user, password=access.password, tls=tls
        )

    def renewed(self, answer: JoinAnswer, keys: NewKeys) -> Membership:
        """Return the same node with new keys."""
        return msgspec.structs.replace(self, answer=answer, key=keys.key, signing_key=keys.signing_key)


def save(folder: NodeFolder, membership: Membership) -> None:
    """Save the identity and the files that programs read. Raises `OSError`.

    The first file is authoritative: `load` restores the others.
    """
    write_file(folder.state_file, msgspec.json.encode(membership).decode() + "\n")
    _write_copies(folder, membership)


def load(folder: NodeFolder) -> Membership:
    """Return this machine's identity as a node. Raises `Problem`."""
    try:
        text = folder.state_file.read_text()
    except FileNotFoundError:
        raise Problem(
            f"This machine is not a node: {folder.state_file.parent} has no node state.",
            "Join with the command on the pool's page, or set its folder with --home.",
        ) from None
    except OSError as error:
        raise Problem(
            f"{folder.state_file} cannot be read ({error.strerror}).", "Run this as the user who joined it."
        ) from error
    try:
        identity = msgspec.json.decode(text, type=Membership)
    except msgspec.MsgspecError as error:
        raise Problem(
            f"{folder.state_file} is damaged ({error}).",
            "Revoke and remove the machine on its pool's page, run `berth node leave --forget`, join again.",
        ) from error
    try:
        _write_copies(folder, identity)
    except OSError as error:
        raise Problem(
            f"{error.filename or folder.state_file.parent} cannot be written ({error.strerror}).",
            "Run this as the user who joined it, or free some space.",
        ) from error
    return identity


def forget(folder: NodeFolder) -> None:
    """Delete the identity, the authoritative file first. Raises `OSError`."""
    for path in (folder.state_file, folder.pending, *_copies(folder)):
        path.unlink(missing_ok=True)


def check_machine(membership: Membership) -> None:
    """Raise `Problem` on a machine with the disk, or a copy, of the one that has joined."""
    if machine_id(membership.instance) != membership.machine_id:
        raise Problem(
            f"This folder belongs to another machine, joined as {membership.name}. The disk was "
            "copied or moved.",
            "Run `berth node leave --forget` here, then join this machine with its own token.",
        )


def check_user(membership: Membership) -> None:
    """Raise `Problem` for a user other than the node's owner."""
    if os.geteuid() != membership.user:
        raise Problem(
            f"The node {membership.name} belongs to the user with ID {membership.user}.",
            "Run this as that user.",
        )


def _copies(folder: NodeFolder) -> tuple[Path, ...]:
    return (folder.key, folder.certificate, folder.authority, folder.signing_key, folder.control_key)


def _write_copies(folder: NodeFolder, membership: Membership) -> None:
    answer = membership.answer
    texts = (
        membership.key,
        answer.certificate,
        answer.authority,
        membership.signing_key + "\n",
        answer.control_key + "\n",
    )
    for path, text in zip(_copies(folder), texts, strict=True):
        if not path.exists() or path.read_text() != text:
            write_file(path, text)
