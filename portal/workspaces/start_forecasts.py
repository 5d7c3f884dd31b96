"""When a workspace would start with another request, asked of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from portal.catalog.models import Flavor
from portal.common.ports import Port
from portal.workspaces.models import Workspace


class StartForecast(Protocol):
    """What would happen to a request now, and why."""

    @property
    def starts_now(self) -> bool:
        """Whether it would start at once."""

    @property
    def possible(self) -> bool:
        """Whether it would start by itself, now or later."""

    @property
    def eta_at(self) -> datetime | None:
        """When it is expected to start, where it would wait and that is known."""

    @property
    def message(self) -> str:
        """Why, in a sentence or two."""

    @property
    def next_action(self) -> str:
        """The one thing to do about it, or an empty string."""


class StartForecasts(Protocol):
    """Predicts starts of workspaces. Changes nothing."""

    def resized(
        self, workspace: Workspace, flavors: Sequence[Flavor]
    ) -> Sequence[tuple[Flavor, StartForecast]]:
        """Return a forecast for each flavor in place of what the workspace has.

        Of many flavors, only for those most like its own.
        """

    def attached(self, workspace: Workspace) -> StartForecast:
        """Return the forecast for the workspace with the accelerators that it has released."""


start_forecasts = Port[StartForecasts]("StartForecasts")
