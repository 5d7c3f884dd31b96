"""The control plane's Celery application: it has the database and never blocks on a backend."""

from __future__ import annotations

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

from django.conf import settings

from provisioning import heartbeat
from provisioning.celery_config import configure

app = Celery("berth-control")
configure(app, broker_url=settings.CELERY_BROKER_URL, default_queue="control")
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
