"""A webhook of team vision, with loopback among the allowed networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from portal.common.actors import SYSTEM
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.notify.webhooks import deliveries, fan_out, services
from portal.notify.webhooks.models import Delivery, Endpoint
from tests.api.conftest import api as api  # a fixture
from tests.receivers import Receiver, receiver


@pytest.fixture(autouse=True)
def _loopback_is_allowed(settings: Any) -> None:
    settings.BERTH_OUTGOING_ALLOW = ["127.0.0.0/8", "::1/128"]


@pytest.fixture
def receiving() -> Iterator[Receiver]:
    with receiver() as new_receiver:
        yield new_receiver


@pytest.fixture
def hook(team: Any, alice: Any) -> Callable[..., Endpoint]:
    """Create a webhook; by default of vision and for workspace events."""

    def made(url: str, *types: str, **fields: Any) -> Endpoint:
        fan_out.run()
        arguments = {"actor": alice, "team": team, "name": "Bot", "url": url, **fields}
        return services.create(
            types=types or ("workspace.failed", "team.members_changed"), **arguments
        ).endpoint

    return made


@pytest.fixture
def tell(team: Any) -> Callable[..., None]:
    """Write an audit entry that has an event type."""

    def written(kind: AuditKind = AuditKind.TEAM_MEMBER_SET, **fields: Any) -> None:
        values = {"actor": SYSTEM, "message": "did it", "team": team, **fields}
        events.record(kind=kind, **values)

    return written


def round_trip() -> list[Delivery]:
    """Run one tick of the worker. Returns the deliveries, oldest first."""
    fan_out.run()
    deliveries.run()
    return list(Delivery.objects.order_by("created_at", "entry_id"))
