"""Starts requests away from the user's home and moves the home, if that is quicker than waiting.

A request qualifies if limits allow it and its home's node has no room. The request starts elsewhere if a node
has room now, and its home's node is not expected to have room before the move would be complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from portal.scheduling.engine.backfill import CapacityForecast, Placer
from portal.scheduling.engine.model import Workload


@runtime_checkable
class HomeMover(Protocol):
    """A placer that can place a request on another node together with its user's home."""

    def has_home(self, workload: Workload) -> bool:
        """Return whether the request can start only on the node of its user's home, unless the home moves."""

    def home_move_s(self, workload: Workload) -> int | None:
        """Return the expected duration of the home move in seconds, or None if the home cannot move now."""

    def set_home_moves(self, workload: Workload, moves: bool) -> None:
        """Place the request away from its home from now on, or at its home again."""


def fit_with_home_move(
    workload: Workload,
    placer: HomeMover,
    place: Callable[[Workload], Workload | None],
    forecast_at_home: Callable[[Workload], CapacityForecast | None],
    now_s: int,
) -> Workload | None:
    """Return the request as it starts now away from its home, or None if it cannot or waiting is quicker.

    The caller has checked that limits allow the request and that its home's node has no room now. `place`
    returns the request as the placer would start it. `forecast_at_home` returns when its home's node will
    have room. If the result is not None, the placer moves the home with the start.
    """
    seconds = placer.home_move_s(workload)
    if seconds is None:
        return None
    placer.set_home_moves(workload, True)
    start = place(workload)
    placer.set_home_moves(workload, False)
    if start is None:
        return None
    forecasts = [forecast_at_home(way) for way in workload.ways()]
    if any(forecast is not None and forecast[0] <= now_s + seconds for forecast in forecasts):
        return None
    placer.set_home_moves(workload, True)
    return start


def earliest_start(
    workload: Workload, placer: Placer | None, forecast: Callable[[Workload], CapacityForecast | None]
) -> int | None:
    """Return when nodes are expected to have room for the request, in UTC seconds, or None if not soon.

    The start is at the home, or elsewhere after a home move. `forecast` returns when the placer will have
    room for the request.
    """
    home_forecast = forecast(workload)
    times = [home_forecast[0]] if home_forecast is not None else []
    if isinstance(placer, HomeMover) and (seconds := placer.home_move_s(workload)) is not None:
        placer.set_home_moves(workload, True)
        other_forecast = forecast(workload)
        placer.set_home_moves(workload, False)
        if other_forecast is not None:
            times.append(other_forecast[0] + seconds)
    return min(times, default=None)
