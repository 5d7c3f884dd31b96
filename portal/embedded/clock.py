"""The Celery application for beat, which sends the names of scheduled tasks without importing the tasks.

It loads neither models nor the code that uses them, which saves most of its memory.
"""

from __future__ import annotations

import logging.config
from typing import Any

from celery.signals import setup_logging
from django.conf import settings

from provisioning import signing
from provisioning.celery_config import configure
from provisioning.signed_celery import Identity, SignedCelery

SCHEDULE: dict[str, dict[str, Any]] = {
    "sweep": {"task": "control.sweep", "schedule": settings.SWEEP_INTERVAL_S},
    "schedule-due": {"task": "control.schedule_due", "schedule": settings.SWEEP_INTERVAL_S},
    "refresh-inventories": {"task": "control.refresh_inventories", "schedule": 5.0},
    "sync-machines": {"task": "control.sync_machines", "schedule": 5.0},
    "sweep-orphans": {"task": "control.sweep_orphans", "schedule": float(settings.ORPHAN_SWEEP_INTERVAL_S)},
    "look-for-leftovers": {"task": "control.look_for_leftovers", "schedule": 60.0},
    "sweep-leftovers": {"task": "control.sweep_leftovers", "schedule": 20.0},
    "delete-homes": {"task": "control.delete_homes", "schedule": 10.0},
    "move-homes": {"task": "control.move_homes", "schedule": 5.0},
    "measure-home-load": {"task": "control.measure_home_load", "schedule": 3600.0},
    "balance-homes": {"task": "control.balance_homes", "schedule": 60.0},
    "archive-homes": {"task": "control.archive_homes", "schedule": 5.0},
    "check-gpus": {"task": "control.check_gpus", "schedule": 30.0},
    "sweep-environments": {"task": "control.sweep_environments", "schedule": 10.0},
    "prune-environments": {"task": "control.prune_environments", "schedule": 3600.0},
    "send-mails": {"task": "control.send_mails", "schedule": 10.0},
    "send-webhooks": {"task": "control.send_webhooks", "schedule": 5.0},
    "send-to-channels": {"task": "control.send_to_channels", "schedule": 5.0},
    "prune-channels": {"task": "control.prune_channels", "schedule": 3600.0},
    "prune-webhooks": {"task": "control.prune_webhooks", "schedule": 3600.0},
    "stream-audit": {"task": "control.stream_audit", "schedule": 5.0},
    "seal-audit": {"task": "control.seal_audit", "schedule": 60.0},
    "store-token-uses": {"task": "control.store_token_uses", "schedule": 10.0},
    "purge-exchanges": {"task": "control.purge_exchanges", "schedule": 300.0},
    "delete-bound": {"task": "control.delete_bound", "schedule": 15.0},
    "apply-scim-rules": {"task": "control.apply_scim_rules", "schedule": 30.0},
    "end-grants": {"task": "control.end_grants", "schedule": 60.0},
    "expire-join-requests": {"task": "control.expire_join_requests", "schedule": 60.0},
    "ledger-tick": {"task": "control.ledger_tick", "schedule": float(settings.BERTH_LEDGER_TICK_S)},
    "reservations-due": {"task": "control.reservations_due", "schedule": 15.0},
    "trim-snapshot-feed": {"task": "control.trim_snapshot_feed", "schedule": 60.0},
    "learn-mixes": {"task": "control.learn_mixes", "schedule": 60.0},
    "average-shares": {"task": "control.average_shares", "schedule": 60.0},
    "tell-of-free-gpus": {"task": "control.tell_of_free_gpus", "schedule": 60.0},
    "observe-activity": {"task": "control.observe_activity", "schedule": 60.0},
    "prune-activity": {"task": "control.prune_activity", "schedule": 3600.0},
    "reclaim": {"task": "control.reclaim", "schedule": 30.0},
    "rebalance": {"task": "control.rebalance", "schedule": 60.0},
    "look-at-homes": {"task": "control.look_at_homes", "schedule": 600.0},
    "roll-up-samples": {"task": "control.roll_up_samples", "schedule": 300.0},
    "roll-up-usage": {"task": "control.roll_up_usage", "schedule": 3600.0},
    "add-up-days": {"task": "control.add_up_days", "schedule": 3600.0},
    "sample-states": {"task": "control.sample_states", "schedule": 300.0},
    "tell-of-months": {"task": "control.tell_of_months", "schedule": 3600.0},
    "forget-samples": {"task": "control.forget_samples", "schedule": 3600.0},
    "forget-sign-ins": {"task": "control.forget_sign_ins", "schedule": 3600.0},
    "clean-up": {"task": "control.clean_up", "schedule": 3600.0},
}

# Without Celery's Django fixup, which would load all of Django.
app = SignedCelery(
    "berth-clock",
    # Beat sends as the control plane and receives nothing.
    identity=Identity(name=signing.CONTROL, key=lambda: settings.BERTH_CONTROL_KEY, keys=dict, queues=tuple),
    fixups=[],
)
configure(app, broker_url=settings.CELERY_BROKER_URL, default_queue="control")
app.conf.beat_schedule = SCHEDULE


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Keep Django's logging configuration instead of Celery's."""
    logging.config.dictConfig(settings.LOGGING)
