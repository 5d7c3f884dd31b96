"""Connects what the gateway process needs for logs, banners and extensions (`portal.reclaim.bar`).

`portal.wiring` connects everything, and with it loads the scheduler, which this process does not need.
"""

from __future__ import annotations

from portal.catalog.selectors import OffersByFlavor
from portal.celery import ask_directory
from portal.common.domain_events import in_transaction
from portal.fleet.inventory.offered_pools import pool_offers
from portal.fleet.machines import keys as machines
from portal.reclaim import extensions
from portal.workspaces.domain_events import WorkspaceExtended
from portal.workspaces.extension_policy import extension_policy


def connect() -> None:
    """Connect what nodes' replies, banners and an extension need, like `portal.wiring`."""
    # Logs of machines that have joined come in messages that these have signed.
    ask_directory(machines.directory)
    pool_offers.connect(OffersByFlavor())
    extension_policy.connect(extensions.LimitExtensions())
    in_transaction(WorkspaceExtended, extensions.workspace_extended)
