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
        "portal.inventory",
        "portal.workspaces",
        "portal.gpu_checks",
        "portal.ledger",
        "portal.reservations",
        "portal.scheduling",
        "portal.quota_requests",
    ]
)
app.conf.beat_schedule = {
    "sweep": {"task": "control.sweep", "schedule": settings.SWEEP_INTERVAL_S},
    "schedule-due": {"task": "control.schedule_due", "schedule": settings.SWEEP_INTERVAL_S},
    "refresh-inventories": {"task": "control.refresh_inventories", "schedule": 5.0},
    "sweep-orphans": {"task": "control.sweep_orphans", "schedule": float(settings.ORPHAN_SWEEP_INTERVAL_S)},
    "check-gpus": {"task": "control.check_gpus", "schedule": 30.0},
    "sync-gateway": {"task": "control.sync_gateway", "schedule": 10.0},
    "send-mails": {"task": "control.send_mails", "schedule": 10.0},
    "end-grants": {"task": "control.end_grants", "schedule": 60.0},
    "ledger-tick": {"task": "control.ledger_tick", "schedule": float(settings.BERTH_LEDGER_TICK_S)},
    "reservations-due": {"task": "control.reservations_due", "schedule": 15.0},
    "trim-snapshot-feed": {"task": "control.trim_snapshot_feed", "schedule": 60.0},
    "average-shares": {"task": "control.average_shares", "schedule": 60.0},
    "roll-up-samples": {"task": "control.roll_up_samples", "schedule": 300.0},
    "forget-samples": {"task": "control.forget_samples", "schedule": 3600.0},
    "clean-up": {"task": "control.clean_up", "schedule": 3600.0},
}


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Celery leaves the logging set-up to Django's settings."""
    import django

    django.setup()
