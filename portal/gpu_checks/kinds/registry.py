"""Finds the handler of a kind of run.

Handlers end runs, and the end of a run sends the next one, which asks its handler: so a handler is imported
when it is first asked for, and every other module of the room can import this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, cast

from django.utils.module_loading import import_string

from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind

if TYPE_CHECKING:
    from portal.gpu_checks.kinds.device_proof import DeviceProofHandler

HANDLERS: Mapping[CheckKind, str] = {
    CheckKind.CHECK: "portal.gpu_checks.kinds.check.CheckHandler",
    CheckKind.SCRUB: "portal.gpu_checks.kinds.scrub.ScrubHandler",
    CheckKind.REPARTITION: "portal.gpu_checks.kinds.repartition.RepartitionHandler",
    CheckKind.RESET: "portal.gpu_checks.kinds.reset.ResetHandler",
    CheckKind.PAIR: "portal.gpu_checks.kinds.pair.PairHandler",
}

PROOFS = (CheckKind.CHECK, CheckKind.SCRUB)
"""Kinds that prove one device; operators, schedules and second looks ask for these."""


def handler_of(kind: str) -> KindHandler:
    """The handler of a kind of run. Raises `ValueError` for an unknown kind."""
    return _made(CheckKind(kind))


@cache
def _made(kind: CheckKind) -> KindHandler:
    handler: KindHandler = import_string(HANDLERS[kind])()
    return handler


def proof_of(kind: str) -> DeviceProofHandler:
    """The handler of a kind that proves one device. Raises `ValueError` for any other kind."""
    if kind not in PROOFS:
        raise ValueError(f"“{kind}” proves no device. Choose one of: {', '.join(PROOFS)}.")
    return cast("DeviceProofHandler", handler_of(kind))


def proof_that_lifts(cordon_cause: str) -> DeviceProofHandler | None:
    """The proof that brings a device back which is cordoned for this cause; None: no run does."""
    return next((proof for proof in map(proof_of, PROOFS) if proof.cordon_cause == cordon_cause), None)
