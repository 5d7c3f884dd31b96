"""The ladder: warn, release its GPUs, stop. `decide` says which step of one workspace is due, and why.

What holds of every decision, whatever came before it:

- nothing is stopped or released without a notice of the same cause, whose time is over;
- where a policy releases GPUs, what has some is not stopped for idleness before it has given them back;
- a notice gives at least the time that the policy says;
- what is kept, has been used since or was extended is not stopped, and its notice is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from portal.reclaim.engine.week import Week


class Cause(StrEnum):
    """Why something is taken back."""

    LIFETIME = "lifetime"
    GPU_IDLE = "gpu_idle"
    IDLE = "idle"
    LONGEST = "longest"
    SCHEDULE = "schedule"
    BUDGET = "budget"
    RELEASE = "release"
    RELEASE_GPU_IDLE = "release_gpu_idle"


RELEASES = frozenset({Cause.RELEASE, Cause.RELEASE_GPU_IDLE})
"""Those for which its GPUs are taken back, and it goes on without them."""
KEEPABLE = frozenset({Cause.GPU_IDLE, Cause.IDLE, Cause.SCHEDULE, *RELEASES})
"""Those against which a word helps that it is needed."""
ENDS = frozenset({Cause.LIFETIME, Cause.LONGEST})
UNUSED_S = 900
"""For how long a workspace has to be unused before a schedule stops it: work goes on beyond its hour."""


class Step(StrEnum):
    """What is to be done with a workspace now."""

    NONE = "none"
    WARN = "warn"
    WAIT = "wait"
    WITHDRAW = "withdraw"
    RELEASE = "release"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds. None: nothing is stopped for that. `notice_s` is the least time between notice and stop.

    `gpu_idle_s` is for its GPUs alone, `idle_s` for all that it does, `longest_s` for its whole life.
    `weeks` have working hours with another idle limit outside them, and hours at which they stop what is not
    used. `stop_when_spent`: accelerators are given back when the team's GPU-hours are spent.
    `release_s`, of one with accelerators: after so long without work it gives these back and goes on without.
    The two idle limits then do no more than that, and do it no later than they would have stopped it.
    """

    gpu_idle_s: int | None
    idle_s: int | None
    notice_s: int
    longest_s: int | None = None
    weeks: tuple[Week, ...] = ()
    stop_when_spent: bool = False
    release_s: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A running workspace as it stands.

    `ends_at_s` is the end of its life, None for no end, and `lifetime_s` how long that was to be.
    `gpu_idle_s` and `idle_s` are for how many seconds it was seen to do nothing on its GPUs, and at all:
    None where that is not known. It is not stopped for idleness before `kept_until_s`. `began_s` is since
    when it runs, without time in which nobody watched; `spent` says that its GPU-hours are.
    """

    ends_at_s: float | None = None
    lifetime_s: int | None = None
    gpu_idle_s: float | None = None
    idle_s: float | None = None
    kept_until_s: float | None = None
    began_s: float | None = None
    spent: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """What its user has been told: that it stops at `due_at_s`, and why."""

    cause: Cause
    warned_at_s: float
    due_at_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """What is held against a workspace: a value that has come near its threshold, both in seconds."""

    cause: Cause
    value_s: float
    threshold_s: float
    due_at_s: float

    @property
    def reached(self) -> bool:
        return self.value_s >= self.threshold_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """The step that is due. `held` is what speaks for it; `due_at_s` is when it stops, if it does."""

    step: Step
    cause: Cause | None = None
    due_at_s: float | None = None
    held: tuple[Held, ...] = ()


def notice_of(policy: Policy, standing: Standing, cause: Cause = Cause.LIFETIME) -> int:
    """How long the notice before a stop is: before an end never more than a quarter of a short life."""
    whole_s = {Cause.LIFETIME: standing.lifetime_s, Cause.LONGEST: policy.longest_s}.get(cause)
    return policy.notice_s if whole_s is None else min(policy.notice_s, whole_s // 4)


def idle_limit_s(policy: Policy, now_s: float) -> int | None:
    """After how long without work it stops at this moment, or releases its GPUs where the policy says so.

    Outside working hours that may be less.
    """
    limits = [each.after_hours_s for each in policy.weeks if each.after_hours_s and not each.works(now_s)]
    found = min([*limits, *(each for each in (policy.idle_s, policy.release_s) if each)], default=None)
    # Never shorter than the notice: there would be nothing idle to tell of.
    return None if found is None else max(found, policy.notice_s)


def held_against(standing: Standing, policy: Policy, now_s: float) -> tuple[Held, ...]:
    """All that is close enough to its threshold for a notice, the soonest due first."""
    found = [*_ends(standing, policy, now_s)]
    if standing.spent and policy.stop_when_spent:
        found.append(Held(Cause.BUDGET, 0.0, 0.0, now_s))
    if standing.kept_until_s is None or standing.kept_until_s <= now_s:
        releases = policy.release_s is not None
        for cause, seen_s, limit_s in (
            (
                Cause.RELEASE_GPU_IDLE if releases else Cause.GPU_IDLE,
                standing.gpu_idle_s,
                policy.gpu_idle_s,
            ),
            (Cause.RELEASE if releases else Cause.IDLE, standing.idle_s, idle_limit_s(policy, now_s)),
        ):
            if seen_s is None or limit_s is None:
                continue
            if limit_s - seen_s <= policy.notice_s:
                found.append(Held(cause, seen_s, limit_s, now_s + max(0.0, limit_s - seen_s)))
        found += _schedule(standing, policy, now_s)
    return tuple(sorted(found, key=lambda each: each.due_at_s))


def _ends(standing: Standing, policy: Policy, now_s: float) -> Iterator[Held]:
    if standing.ends_at_s is not None:
        left_s = standing.ends_at_s - now_s
        if left_s <= notice_of(policy, standing):
            lifetime_s = float(standing.lifetime_s or 0)
            yield Held(Cause.LIFETIME, lifetime_s - left_s, lifetime_s, standing.ends_at_s)
    if policy.longest_s is not None and standing.began_s is not None:
        end_s = standing.began_s + policy.longest_s
        if end_s - now_s <= notice_of(policy, standing, Cause.LONGEST):
            yield Held(Cause.LONGEST, now_s - standing.began_s, policy.longest_s, end_s)


def _schedule(standing: Standing, policy: Policy, now_s: float) -> Iterator[Held]:
    """The hour at which it is stopped, if it ran before, once nothing happens in it any more."""
    if standing.began_s is None or standing.idle_s is None or standing.idle_s < UNUSED_S:
        return
    stops = [
        stop
        for each in policy.weeks
        if (stop := each.stop_near(now_s, policy.notice_s)) is not None and stop > standing.began_s
    ]
    if stops:
        value_s = policy.notice_s - (min(stops) - now_s)
        yield Held(Cause.SCHEDULE, value_s, policy.notice_s, min(stops))


def decide(standing: Standing, policy: Policy, notice: Notice | None, now_s: float) -> Verdict:
    """The step that is due for a running workspace, of which `notice` has been given."""
    held = held_against(standing, policy, now_s)
    if notice is not None:
        same = next((each for each in held if each.cause == notice.cause), None)
        if same is None:
            return Verdict(Step.WITHDRAW, notice.cause, None, held)
        if now_s >= notice.due_at_s and same.reached:
            step = Step.RELEASE if notice.cause in RELEASES else Step.STOP
            return Verdict(step, notice.cause, notice.due_at_s, held)
        return Verdict(Step.WAIT, notice.cause, max(notice.due_at_s, same.due_at_s), held)
    if not held:
        return Verdict(Step.NONE)
    first = held[0]
    return Verdict(
        Step.WARN,
        first.cause,
        max(first.due_at_s, now_s + notice_of(policy, standing, first.cause)),
        held,
    )
