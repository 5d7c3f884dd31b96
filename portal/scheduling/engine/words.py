"""Sentences about verdicts, for people who wait."""

from __future__ import annotations

from datetime import UTC, datetime

from portal.common.reasons.codes import Rule
from portal.scheduling.engine.model import Blocker, Workload

NEXT_ACTION = {
    Rule.USER_CAP: "Stop one of your own, or ask for a higher cap.",
    Rule.TEAM_LIMIT: "Ask for more quota.",
    Rule.LEDGER: "Ask for GPU-hours, or wait for the refill.",
}


def amount_text(resource: str, amount: int) -> str:
    """`gpu:h100`, 1500 → "1.5 × H100"; `memory_mib`, 2048 → "2 GiB memory"."""
    if resource.startswith(("gpu:", "mig:")):
        return f"{_thousandths(amount)} × {resource.partition(':')[2].upper() or 'GPU'}"
    if resource == "cpu_milli":
        return f"{_thousandths(amount)} CPU"
    if resource.endswith("_mib"):
        what = resource.removesuffix("_mib").replace("_", " ")
        if amount >= 1024 and amount % 1024 == 0:
            return f"{amount // 1024} GiB {what}"
        return f"{amount} MiB {what}"
    return f"{amount} {resource.replace('_', ' ')}"


def _thousandths(amount: int) -> str:
    whole, rest = divmod(abs(amount), 1000)
    text = f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if rest else str(whole)
    return f"-{text}" if amount < 0 else text


def clock(at_s: int, now_s: int) -> str:
    """The time of day in UTC, with the date where it is another day."""
    at, now = datetime.fromtimestamp(at_s, UTC), datetime.fromtimestamp(now_s, UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%d %b %H:%M} UTC"


def span(seconds: int) -> str:
    """7500 → "2 h", 1900 → "31 min"."""
    if seconds >= 2 * 86400:
        return f"{seconds // 86400} days"
    return f"{seconds // 3600} h" if seconds >= 3600 else f"{seconds // 60} min"


def held_by(blocker: Blocker, now_s: int) -> str:
    parts = []
    for holder in blocker.holders:
        until = (
            ""
            if holder.next_end_s is None
            else f", the first of it until {clock(max(holder.next_end_s, now_s), now_s)}"
        )
        idle = (
            f" ({amount_text(blocker.resource, holder.idle)} idle for {span(holder.idle_s)} at least)"
            if holder.idle
            else ""
        )
        held = amount_text(blocker.resource, holder.amount)
        parts.append(f"{held} held by team {holder.team}{until}{idle}")
    return "; ".join(parts)


def explain(workload: Workload, blocker: Blocker, now_s: int, *, ever: bool) -> str:
    """Why the request does not start now; `ever` is false where it cannot under the present limits."""
    wanted = amount_text(blocker.resource, blocker.wanted)
    free = amount_text(blocker.resource, max(0, blocker.free))
    limit = amount_text(blocker.resource, blocker.limit)
    texts = {
        Rule.LEDGER: f"Team {workload.team} has no GPU-hours left.",
        Rule.USER_CAP: f"Needs {wanted}; you may hold {limit} and have {free} left.",
        Rule.TEAM_LIMIT: f"Needs {wanted}; team {workload.team} may hold {limit} and has {free} left.",
        Rule.COHORT: f"Needs {wanted}; the cohort of team {workload.team} has {free} left to lend.",
        Rule.SITE_LIMIT: f"Needs {wanted}; the site allows {limit}, of which {free} are left.",
        Rule.CAPACITY: f"Needs {wanted}; {free} of {limit} are free.",
        Rule.BOOKING: f"Needs {wanted}; {free} are free but booked for others.",
        Rule.PLACEMENT: "Enough is free in all, but not together on the nodes where it is needed.",
        Rule.ORDER: "Enough is free, but it is kept for requests that come first.",
    }
    if not ever and blocker.rule is Rule.CAPACITY:
        return f"Needs {wanted}; the site has {limit}. Choose a smaller flavor."
    text = texts[blocker.rule]
    holders = held_by(blocker, now_s) if blocker.rule in (Rule.COHORT, Rule.SITE_LIMIT, Rule.CAPACITY) else ""
    action = NEXT_ACTION.get(blocker.rule, "")
    return " ".join(part for part in (text, f"{holders}." if holders else "", action) if part)
