"""Tells those who wait: their place in the queue, when it should be their turn, and what is in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.common.formatting import format_amount, format_clock, format_duration, format_resource_amount
from portal.common.reasons.codes import Rule
from portal.scheduling.engine import verdicts
from portal.scheduling.engine.model import Blocker, Cycle, Outcome, Workload
from portal.scheduling.engine.state import Shortfall
from portal.scheduling.placement_request import Asked
from portal.scheduling.snapshot import Site, Waiter, without_preemption
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace

ETA_CHANGES_BY = timedelta(seconds=30)
"""An ETA that moves by less is not written again."""
COLUMNS = ("queue_position", "eta_at", "eta_basis", "blocker", "error_code", "error_message")
HOLDERS_NAMED = 3


@dataclass(frozen=True, slots=True)
class Told:
    """What the user of a waiting workspace is told."""

    outcome: Outcome
    message: str
    position: int | None = None
    eta_at: datetime | None = None
    basis: str = ""
    blocker: Mapping[str, Any] | None = None


def tell(site: Site) -> None:
    """Write to every waiting workspace what has changed of what its user is told."""
    if not site.waiters:
        return
    scheduler = site.scheduler
    with without_preemption(scheduler):
        cycle = scheduler.cycle(site.now_s)
    etas = verdicts.forecast(scheduler, cycle)
    order = {
        workload.id: place + 1
        for place, workload in enumerate(scheduler.pending.pick(scheduler.state, set()))
    }
    rows = {
        str(row.pk): row
        for row in Workspace.objects.select_for_update(of=("self",), skip_locked=True)
        .filter(pk__in=list(site.waiters), state=State.PENDING)
        .only(*COLUMNS)
    }
    changed: dict[tuple[str, ...], list[Workspace]] = {}
    for name, waiter in site.waiters.items():
        row = rows.get(name)
        if row is not None and (
            columns := _update(row, _told(site, waiter, cycle, order.get(name), etas.get(name)))
        ):
            changed.setdefault(columns, []).append(row)
    for columns, those in changed.items():
        # Only what has changed: mostly the places in the queue, and a statement takes long by its length.
        Workspace.objects.bulk_update(those, columns, batch_size=500)


def _told(site: Site, waiter: Waiter, cycle: Cycle, position: int | None, eta: verdicts.Eta | None) -> Told:
    if waiter.reason or waiter.id not in site.scheduler.pending.items:
        return Told(Outcome.QUEUED, capacity_message(waiter) if waiter.reason else "Is looked at again.")
    never = site.scheduler.state.never(waiter.workload)
    shortfall = never or verdicts.why_not(site.scheduler, waiter.workload, cycle)
    blocker = verdicts.blocker_of(site.scheduler, waiter.workload, shortfall)
    asks = never is not None and never[0] in (Rule.TEAM_LIMIT, Rule.USER_CAP)
    if shortfall[0] is Rule.LEDGER:
        asks = True
    return Told(
        Outcome.NEEDS_APPROVAL if asks else Outcome.QUEUED,
        message(site, waiter, waiter.workload, shortfall, blocker),
        None if asks else position,
        at(eta.eta_s) if eta and not asks else None,
        eta.basis if eta and not asks else "",
        as_data(blocker),
    )


def moment(seconds: int) -> datetime:
    """UTC seconds as a moment."""
    return datetime.fromtimestamp(seconds, UTC)


def at(seconds: int | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def iso(seconds: int | None) -> str | None:
    return None if seconds is None else moment(seconds).isoformat()


def message(site: Site, waiter: Waiter, workload: Workload, shortfall: Shortfall, blocker: Blocker) -> str:
    """Why it does not start now, in a sentence or two."""
    if shortfall[0] in (Rule.PLACEMENT, Rule.CAPACITY):
        text = capacity_message(waiter)
        held = holders_text(site, blocker)
        return f"{text} {held}." if held else text
    return explain(site, workload, blocker)


def explain(site: Site, workload: Workload, blocker: Blocker) -> str:
    """The rule, the number, and who holds it, for what is not a matter of nodes."""
    name = blocker.resource
    team = site.team_names.get(workload.team, workload.team)
    wanted = format_resource_amount(name, blocker.wanted) if name else ""
    free = format_amount(name, max(0, blocker.free)) if name else ""
    limit = format_resource_amount(name, blocker.limit) if name else ""
    texts = {
        Rule.LEDGER: f"{team} has no GPU-hours left.",
        Rule.USER_CAP: f"Needs {wanted}; you may hold {limit} in {team} and have {free} left.",
        Rule.TEAM_LIMIT: f"Needs {wanted}; {team} may hold {limit} and has {free} left.",
        Rule.COHORT: f"Needs {wanted}; the teams that {team} shares with have {free} left to lend.",
        Rule.SITE_LIMIT: f"Needs {wanted}; all teams together may hold {limit}, of which {free} are left.",
        Rule.BOOKING: f"Needs {wanted}; {free} are free, but booked for other teams.",
        Rule.ORDER: "Enough is free, but it is kept for requests that come first.",
    }
    text = texts.get(blocker.rule, f"Needs {wanted}; {free} are free.")
    held = holders_text(site, blocker) if blocker.rule in (Rule.COHORT, Rule.SITE_LIMIT) else ""
    return f"{text} {held}." if held else text


def holders_text(site: Site, blocker: Blocker) -> str:
    """“3 × H100 held by team Vision until 16:40 UTC”, for those that hold most of what is missing."""
    parts = []
    for holder in blocker.holders[:HOLDERS_NAMED]:
        until = at(max(holder.next_end_s, site.now_s)) if holder.next_end_s is not None else None
        when = f", some of it until about {format_clock(until, site.now)}" if until else ""
        name = site.team_names.get(holder.team, holder.team)
        idle = (
            f" ({format_amount(blocker.resource, holder.idle)} idle for {format_duration(holder.idle_s)})"
            if holder.idle > 0
            else ""
        )
        parts.append(f"{format_resource_amount(blocker.resource, holder.amount)} held by {name}{when}{idle}")
    return "; ".join(parts)


def capacity_message(waiter: Waiter) -> str:
    """Why no node takes it now: the first node's reason."""
    return summary("Waits until there is room", node_reasons(waiter.asked))


def node_reasons(asked: Asked) -> tuple[tuple[str, str], ...]:
    """Why no node takes it now, node by node."""
    return tuple(
        reason for pool in asked.pools for reason in pool.reasons(pool.adapted(asked.request, asked.template))
    )


def summary(lead: str, reasons: Sequence[tuple[str, str]]) -> str:
    """`lead`, and the reason of the first node, if possible of one that has what is asked for."""
    if not reasons:
        return f"{lead}: there are no nodes."
    node, reason = next(
        (each for each in reasons if not each[1].startswith(("has no ", "lacks "))), reasons[0]
    )
    more = f", and {len(reasons) - 1} more nodes" if len(reasons) > 1 else ""
    colon = "" if reason.startswith(("is ", "has ", "lacks ", "cannot ")) else ":"
    return f"{lead}: {node}{colon} {reason}{more}."


def as_data(blocker: Blocker) -> dict[str, Any]:
    """The blocker as the API shows it and a workspace keeps it."""
    return {
        "rule": blocker.rule.value,
        "resource": blocker.resource,
        "wanted": blocker.wanted,
        "free": blocker.free,
        "limit": blocker.limit,
        "holders": [
            {
                "team": holder.team,
                "amount": holder.amount,
                "until": iso(holder.next_end_s),
                "idle": holder.idle,
                "idle_s": holder.idle_s if holder.idle_s >= 0 else None,
            }
            for holder in blocker.holders
        ],
    }


def _update(row: Workspace, told: Told) -> tuple[str, ...]:
    """Take over what its user is to be told; returns the columns that have changed."""
    eta = row.eta_at
    if told.eta_at is None or eta is None or abs(told.eta_at - eta) >= ETA_CHANGES_BY:
        eta = told.eta_at
    blocker = dict(told.blocker or {})
    values: tuple[Any, ...] = (
        told.position, eta, told.basis[:200], blocker, told.outcome.value, told.message,
    )  # fmt: skip
    changed = tuple(name for name, value in zip(COLUMNS, values, strict=True) if getattr(row, name) != value)
    for name, value in zip(COLUMNS, values, strict=True):
        setattr(row, name, value)
    return changed
