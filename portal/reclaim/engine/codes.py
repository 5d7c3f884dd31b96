"""Codes of placements and rebalancing."""

from __future__ import annotations

from enum import StrEnum


class RebalanceCode(StrEnum):
    """Problems of a placement, and reasons why a workspace should or cannot move."""

    SLOWED = "gpu_slowed"
    CROWDED = "gpu_crowded"
    OVERCOMMITTED = "place_overcommitted"
    WORK_SLOWER = "work_slower_here"
    SHORT_OF_CPU = "node_short_of_cpu"
    SHORT_OF_MEMORY = "node_short_of_memory"
    MAKES_ROOM = "moves_make_room"
    NO_SUCH_PROPOSAL = "no_such_proposal"
    PROPOSAL_OVER = "proposal_over"
