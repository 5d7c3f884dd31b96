"""The control plane's Celery application: it has the database and never blocks on a backend."""

from __future__ import annotations

import os

from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.conf import settings

from provisioning import heartbeat, signing
from provisioning.celery_config import CONTROL_QUEUE, configure
from provisioning.signed_celery import Identity, SignedCelery


def believed() -> signing.Keys:
    """Public keys of the control plane itself and of all nodes. Raises `ValueError` or `OSError`."""
    own = signing.public_keys(signing.public_text(settings.BERTH_CONTROL_KEY))
    return {**signing.node_keys(settings.BERTH_NODE_KEYS_DIR), signing.CONTROL: own}


app = SignedCelery(
    "berth-control",
    identity=Identity(
        name=signing.CONTROL,
        key=lambda: settings.BERTH_CONTROL_KEY,
        keys=believed,
        queues=lambda: (CONTROL_QUEUE,),
    ),
)
configure(app, broker_url=settings.CELERY_BROKER_URL, default_queue=CONTROL_QUEUE)
heartbeat.install(app)
app.autodiscover_tasks(
    [
        "portal.events",
        "portal.accounts",
        "portal.webhooks",
        "portal.channels",
        "portal.service_accounts",
        "portal.join_requests",
        "portal.scim",
        "portal.inventory",
        "portal.workspaces",
        "portal.gpu_checks",
        "portal.ledger",
        "portal.reservations",
        "portal.scheduling",
        "portal.quota_requests",
    ]
)


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Celery leaves the logging set-up to Django's settings."""
    import django

    django.setup()
