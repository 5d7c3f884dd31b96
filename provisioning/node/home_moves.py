"""Moves of homes on the node plane: the old machine allows reading a home, and the new one reads it.

A FETCH order runs for some seconds and returns its progress; the control plane then sends the next one. A
crash on either side costs only one order, and data that has arrived is kept.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from provisioning import messages
from provisioning.celery_config import CONTROL_QUEUE
from provisioning.drivers.local.file_server import Home
from provisioning.drivers.local.home_access import LocalHomes
from provisioning.drivers.local.home_moves import HomeMoves
from provisioning.errors import BackendUnavailable, Blame, ProvisioningError, StaleCommand
from provisioning.home_messages import HomeMoved, HomeMoveOrder, MoveCommand, MovePhase
from provisioning.node.homes import homes_of
from provisioning.node.local_settings import driver_for
from provisioning.node.tasks import failure_of
from provisioning.node.worker import app
from provisioning.node_gateway import PORTAL_NAME

log = logging.getLogger(__name__)
STEP_S = 10.0
DELETE_S = 15.0
CONNECT_S = 10.0
QUIET_S = 40.0
PIECE = 1 << 18
PREFIX = "/.berth/files/"
DOOR_PREFIX = "/nodes/v1/homes/"
DOOR, FRONT = "BERTH_NODE_PORTAL_URL", "BERTH_NODE_FRONT_DOOR_URL"
AUTHORITY, CERTIFICATE, KEY = "BERTH_NODE_AUTHORITY", "BERTH_NODE_CERTIFICATE", "BERTH_NODE_CERTIFICATE_KEY"


class OfferExpired(ProvisioningError):
    """The old machine no longer knows the ticket, or cannot be reached."""

    code = "offer_gone"
    blame = Blame.BACKEND


class CopyRefused(ProvisioningError):
    """The home cannot be moved to this machine as it is."""

    code = "copy_refused"
    retryable = False
    blame = Blame.OPERATOR


class NotEnoughSpace(CopyRefused):
    """The disk has not enough space for the home."""

    code = "no_room_for_home"

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"The home needs {needed >> 20} more MiB on this machine, which has {free >> 20} MiB available. "
            "Free disk space there."
        )
        self.needed, self.free = needed, free


class HomeUnreadable(CopyRefused):
    """Something in the home cannot be read, so a copy would lose it."""

    code = "home_unreadable"


class HomeChanges(CopyRefused):
    """The home keeps changing during the copy."""

    code = "home_changes"


@app.task(name="node.move_home", soft_time_limit=150, time_limit=160)  # type: ignore[untyped-decorator]
def move_home(order: dict[str, Any]) -> None:
    """Execute one order and report under its lease."""
    answer = run(messages.load(order, HomeMoveOrder), now=time.time())
    app.send_task("control.apply_home_move", kwargs={"answer": messages.dump(answer)}, queue=CONTROL_QUEUE)


def run(order: HomeMoveOrder, *, now: float) -> HomeMoved:
    """Return the answer for every outcome, including unexpected errors."""
    answer = HomeMoved(order.move, order.lease, order.do)
    try:
        if now > order.expires_at:
            raise StaleCommand(
                "The node received the command after it had expired. The portal retries automatically."
            )
        homes = homes_of(driver_for(order.pool))
        if homes is None:
            raise CopyRefused("This pool does not store homes on its machines, so they cannot be moved.")
        return _carry_out(order, answer, homes)
    except NotEnoughSpace as error:
        return replace(answer, failure=failure_of(error), needed=error.needed, free=error.free)
    except Exception as error:
        return replace(answer, failure=failure_of(error))


def _carry_out(order: HomeMoveOrder, answer: HomeMoved, homes: LocalHomes) -> HomeMoved:
    moves = homes.home_moves(team=order.team, owner=order.owner)
    home = Home(order.team, order.owner)
    with moves.exclusive(home):
        match order.do:
            case MoveCommand.OFFER:
                _result_of(moves.offer(home, digest=order.digest, lifetime_s=order.lifetime_s))
                return replace(answer, done=True)
            case MoveCommand.DISCARD:
                return replace(answer, done=moves.discard(home, order.move, limit_s=DELETE_S))
            case MoveCommand.REMOVE:
                return replace(answer, done=moves.remove(home, limit_s=DELETE_S))
            case MoveCommand.FETCH:
                return fetch(order, answer, moves, home)


def fetch(order: HomeMoveOrder, answer: HomeMoved, moves: HomeMoves, home: Home) -> HomeMoved:
    """Copy for `STEP_S`, at least one part. Raises `ProvisioningError` and `OSError`."""
    if moves.begin(home, order.move):
        return replace(answer, done=True, phase=MovePhase.PLACED)
    until = time.monotonic() + STEP_S
    while True:
        need: dict[str, Any] = _result_of(moves.query(home, {"do": "next"}))
        part = str(need.get("need"))
        if part == "nothing":
            moves.install(home, order.move)
            return replace(_with_progress(answer, need, part), done=True, phase=MovePhase.PLACED)
        if part != "time":
            request = {"part": part, **_position_of(need)}
            with _open_stream(order, request) as pieces:
                need.update(_result_of(moves.query(home, {"do": "take", "part": part}, pieces)))
        if time.monotonic() > until:
            return _with_progress(answer, need, part)


def _position_of(need: dict[str, Any]) -> dict[str, Any]:
    return {name: need[name] for name in ("after", "start", "wants") if name in need}


def _with_progress(answer: HomeMoved, need: Mapping[str, Any], part: str) -> HomeMoved:
    total = int(need.get("of_bytes", 0))
    return replace(
        answer,
        phase=MovePhase.CHECKING if part == "check" else MovePhase.COPYING,
        bytes_done=min(total, int(need.get("bytes", 0))),
        bytes_total=total,
        entries_done=int(need.get("entries", 0)),
        entries_total=int(need.get("of_entries", 0)),
        left_out=int(need.get("left_out", 0)),
    )


def _result_of(response: dict[str, Any]) -> dict[str, Any]:
    """Return the file server's result. Raises `ProvisioningError` for a refusal."""
    result = response.get("ok")
    if isinstance(result, dict):
        return result
    refused = response.get("refused")
    refused = refused if isinstance(refused, dict) else {}
    code, about = str(refused.get("code")), str(refused.get("name", ""))[:300]
    if code == "no_room":
        raise NotEnoughSpace(int(refused.get("needed", 0)), int(refused.get("free", 0)))
    if code == "disk_full":
        raise NotEnoughSpace(0, 0)
    if code == "unreadable":
        raise HomeUnreadable(
            f"“{about}” in the home is unreadable or nested too deeply. Ask the owner to delete this item."
        )
    if code == "bad_stream" and "changes" in about:
        raise HomeChanges(
            "The home keeps changing during the copy. Stop the programs that write to it on its machine."
        )
    raise OfferExpired(
        "The copy was interrupted. The portal continues it automatically.", detail=f"{code}: {about}"
    )


@contextlib.contextmanager
def _open_stream(order: HomeMoveOrder, request: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
    """Stream a part of the home from its old machine. Raises `OfferExpired`."""
    connection, path, headers = _connect(order, os.environ)
    try:
        try:
            connection.request("POST", path, json.dumps(request).encode(), headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise OfferExpired(
                "The old machine does not answer. The portal retries automatically.", detail=repr(error)
            ) from error
        with answer:
            if answer.status != 200:
                detail = f"{answer.status} {answer.read(300)!r}"
                raise OfferExpired(
                    "The old machine denied access to the home. The portal retries automatically.",
                    detail=detail,
                )
            yield _pieces(answer)
    finally:
        connection.close()


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the response. A truncated one lacks the final record, which the reader detects."""
    try:
        while data := answer.read1(PIECE):
            yield data
    except (OSError, http.client.HTTPException) as error:
        log.info("transfer of part of a home was interrupted: %s", error)


def _connect(
    order: HomeMoveOrder, environ: Mapping[str, str]
) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return connection, path and headers to the old machine.

    The way leads through the portal's endpoint for machines, or, on the portal's own machine, through its
    front door.
    """
    if url := environ.get(DOOR):
        context = ssl.create_default_context(cafile=environ[AUTHORITY])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(environ[CERTIFICATE], environ[KEY])
        place = urlsplit(url)
        connection = _DoorConnection(str(place.hostname), place.port or 443, context)
        name = order.host.partition(".")[0]
        return connection, f"{DOOR_PREFIX}{name}/{order.ticket}", {}
    if url := environ.get(FRONT):
        place = urlsplit(url)
        portal = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=QUIET_S)
        return portal, f"{PREFIX}{order.ticket}", {"Host": order.host}
    raise BackendUnavailable(
        "The node worker of this machine has no address of the portal. Restart Berth's services there."
    )


class _DoorConnection(http.client.HTTPSConnection):
    """TLS connection to the portal's endpoint for machines, independent of its address."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=QUIET_S, context=context)
        self._tls = context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=PORTAL_NAME)
