"""Finds the handler of a kind of run.

When a run ends, the next one is sent, which needs its handler. Handlers are imported on first use, so that
every other module of the package can import this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from django.utils.module_loading import import_string

from portal.gpu_checks.kinds.handler import KindHandler
from portal.gpu_checks.models import CheckKind

HANDLERS: Mapping[CheckKind, str] = {
    CheckKind.CHECK: "portal.gpu_checks.kinds.check.CheckHandler",
    CheckKind.SCRUB: "portal.gpu_checks.kinds.scrub.ScrubHandler",
    CheckKind.REPARTITION: "portal.gpu_checks.kinds.repartition.RepartitionHandler",
    CheckKind.RESET: "portal.gpu_checks.kinds.reset.ResetHandler",
    CheckKind.PAIR: "portal.gpu_checks.kinds.pair.PairHandler",
    CheckKind.JOINT: "portal.gpu_checks.kinds.joint.JointHandler",
}


def handler_of(kind: str) -> KindHandler:
    """Return the handler of a kind of run. Raises `ValueError` for an unknown kind."""
    return _load_handler(CheckKind(kind))


@cache
def _load_handler(kind: CheckKind) -> KindHandler:
    handler: KindHandler = import_string(HANDLERS[kind])()
    return handler
