"""Celery application of the control plane: it uses the database and never blocks on a backend."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any, Protocol

import django
from celery.signals import setup_logging, worker_init, worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.conf import settings
from django.db import connections

from provisioning import heartbeat, signing
from provisioning.celery_config import CONTROL_QUEUE, configure
from provisioning.signed_celery import Identity, SignedCelery, SignedTask, sender

log = logging.getLogger(__name__)


class NodeDirectory(Protocol):
    """Nodes that have joined, implemented by `portal.fleet.machines`."""

    def keys(self) -> signing.Keys:
        """Return public keys by sender name; none for a revoked node."""

    def refuses(self, sender: str) -> bool:
        """Return whether this node has joined and was revoked."""


_directories: list[NodeDirectory] = []
_between_forks = False


def ask_directory(directory: NodeDirectory) -> None:
    """Trust the nodes of `directory` from now on, besides those with keys in `BERTH_NODE_KEYS_DIR`."""
    _directories[:] = [directory]


def trusted_keys() -> signing.Keys:
    """Return the public keys of the control plane itself and of all nodes.

    Raises `ValueError`, `OSError`, or database errors.
    """
    own = signing.public_keys(signing.public_text(settings.BERTH_CONTROL_KEY))
    keys: dict[str, Collection[Ed25519PublicKey]] = {**signing.node_keys(settings.BERTH_NODE_KEYS_DIR)}
    try:
        for directory in _directories:
            keys.update(directory.keys())
    finally:
        if _between_forks:
            # Processes of the pool would inherit a connection that is open here.
            connections.close_all()
    return {**keys, signing.CONTROL: own}


class ControlTask(SignedTask):
    """Checks immediately before it runs whether its sender is still trusted: a node may have been revoked."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        by = sender()
        if by and by != signing.CONTROL and any(directory.refuses(by) for directory in _directories):
            log.warning("dropped a message from %s: the node was revoked or removed", by)
            return None
        return self.run(*args, **kwargs)


class ControlCelery(SignedCelery):
    task_cls = ControlTask


app = ControlCelery(
    "berth-control",
    identity=Identity(
        name=signing.CONTROL,
        key=lambda: settings.BERTH_CONTROL_KEY,
        keys=trusted_keys,
        queues=lambda: (CONTROL_QUEUE,),
    ),
)
configure(
    app,
    broker_url=settings.CELERY_BROKER_URL,
    default_queue=CONTROL_QUEUE,
    on_undecodable=app.drop_undecodable,
)
heartbeat.install(app)
app.autodiscover_tasks(
    [
        "portal.common.events",
        "portal.people.accounts",
        "portal.notify.webhooks",
        "portal.notify.channels",
        "portal.people.service_accounts",
        "portal.people.join_requests",
        "portal.people.scim",
        "portal.fleet.inventory",
        "portal.fleet.machines",
        "portal.catalog.environments",
        "portal.workspaces",
        "portal.workspaces.orphans",
        "portal.gpu_checks",
        "portal.quota.ledger",
        "portal.quota.reservations",
        "portal.scheduling",
        "portal.reclaim",
        "portal.quota.requests",
        "portal.reports",
    ]
)


@worker_init.connect
def _begin(**_: object) -> None:
    global _between_forks
    _between_forks = True


@worker_process_init.connect
def _forked(**_: object) -> None:
    global _between_forks
    _between_forks = False


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Keep Django's logging configuration instead of Celery's."""
    django.setup()
