"""Kinds of runs that prove one device, which operators, schedules and rechecks request."""

from __future__ import annotations

from typing import cast

from portal.gpu_checks.kinds.device_proof import DeviceProofHandler
from portal.gpu_checks.kinds.registry import handler_of
from portal.gpu_checks.models import CheckKind

PROOFS = (CheckKind.CHECK, CheckKind.SCRUB)


def proof_of(kind: str) -> DeviceProofHandler:
    """Return the handler of a kind that proves one device. Raises `ValueError` for any other kind."""
    if kind not in PROOFS:
        raise ValueError(f"“{kind}” proves no device. Choose one of: {', '.join(PROOFS)}.")
    return cast("DeviceProofHandler", handler_of(kind))


def proof_for_cordon(cordon_cause: str) -> DeviceProofHandler | None:
    """Return the handler whose runs lift a cordon with this cause, or `None`."""
    return next((proof for proof in map(proof_of, PROOFS) if proof.cordon_cause == cordon_cause), None)
