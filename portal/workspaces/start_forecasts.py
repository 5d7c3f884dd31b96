"""Port to the scheduler: forecasts of starts with a changed request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from portal.catalog.models import Flavor
from portal.common.ports import Port
from portal.workspaces.models import Workspace


class StartForecast(Protocol):
    """Forecast of a start, with the reason."""

    @property
    def starts_now(self) -> bool:
        """Whether it would start at once."""

    @property
    def possible(self) -> bool:
        """Whether it would start without further action, now or later."""

    @property
    def eta_at(self) -> datetime | None:
        """The estimated start if the workspace would wait, or `None` if unknown."""

    @property
    def message(self) -> str:
        """The reason, in one or two sentences."""

    @property
    def next_action(self) -> str:
        """The action to take, or an empty string."""


class StartForecasts(Protocol):
    """Forecasts starts of workspaces. Changes nothing."""

    def resized(
        self, workspace: Workspace, flavors: Sequence[Flavor]
    ) -> Sequence[tuple[Flavor, StartForecast]]:
        """Return the workspace's start forecast for each flavor.

        Limited to the most similar flavors if there are many.
        """

    def attached(self, workspace: Workspace) -> StartForecast:
        """Return the workspace's start forecast with its released accelerators."""


start_forecasts = Port[StartForecasts]("StartForecasts")
