"""Placement, admission and preemption."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """Which rule keeps a request waiting, or refuses it."""

    USER_CAP = "user_cap"
    TEAM_LIMIT = "team_limit"
    COHORT = "cohort"
    SITE_LIMIT = "site_limit"
    LEDGER = "ledger"
    CAPACITY = "capacity"
    BOOKING = "booking"
    PLACEMENT = "placement"
    ORDER = "order"


class RebalanceCode(StrEnum):
    """What speaks against the place of a workspace, why it should move, and why it does not."""

    SLOWED = "gpu_slowed"
    CROWDED = "gpu_crowded"
    OVERCOMMITTED = "place_overcommitted"
    WORK_SLOWER = "work_slower_here"
    SHORT_OF_CPU = "node_short_of_cpu"
    SHORT_OF_MEMORY = "node_short_of_memory"
    MAKES_ROOM = "moves_make_room"
    NO_SUCH_PROPOSAL = "no_such_proposal"
    PROPOSAL_OVER = "proposal_over"
