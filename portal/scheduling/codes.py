"""Codes of verdicts and of moves."""

from __future__ import annotations

from enum import StrEnum


class AdmissionCode(StrEnum):
    """The outcome of a request if no `Rule` applies."""

    FITS_NOW = "fits_now"
    FITS_NOW_ON_MODEL = "fits_now_on_model"
    HANDED_OVER = "handed_over_now"
    HANDED_OVER_TO_QUEUE = "handed_over_to_queue"
    FLAVOR_FIRST = "waits_for_first_flavor"
    FLAVOR_LATER = "waits_for_later_flavor"
    FLAVOR_WITHIN = "waits_for_flavor_within"
    FLAVOR_OPEN = "waits_for_any_flavor"
    FITS_NOW_WITH_HOME = "fits_now_with_home"
    HOME_LOST = "home_lost"
    HOME_MOVING = "home_moving"
    HOME_ARCHIVED = "home_archived_now"
    HOME_AWAY = "home_away"
    LOOKED_AT_AGAIN = "looked_at_again"
    POOL_MAINTENANCE = "pool_in_maintenance"
    SITE_MAINTENANCE = "site_in_maintenance"
    NO_ENABLED_POOL = "no_enabled_pool"
    BUDGET_SPENT = "budget_spent"
    NO_POOL_RUNS_IT = "no_pool_runs_it"
    NO_NODE_REPORTED = "no_node_reported"
    NO_NODE_HAS_PROGRAM = "no_node_has_program"
    NO_NODE_HAS_SOFTWARE = "no_node_has_software"
    NO_NODE_SHOWS_FOLDERS = "no_node_shows_folders"
    NO_NODE_HOLDS_SHARES = "no_node_holds_gpu_shares"
    NO_NODE_LARGE_ENOUGH = "no_node_large_enough"


class MoveCode(StrEnum):
    """Reasons why a workspace cannot be moved, or its move cannot be cancelled."""

    CHANGED_MEANWHILE = "move_changed_meanwhile"
    NO_PLACE_ANY_MORE = "move_without_place"
    NOT_RUNNING = "move_needs_running"
    STOPS_SOON = "move_of_preempted"
    MOVES_ALREADY = "moves_already"
    ENGINE_PLACES = "move_in_cluster"
    SEVERAL_NODES = "move_of_several_nodes"
    NOT_PLACEABLE = "move_not_placeable"
    HOME_STAYS = "move_leaves_home"
    NO_SUCH_NODE = "move_to_unknown_node"
    SAME_NODE = "move_to_same_node"
    NODE_CANNOT = "move_to_unsuitable_node"
    NO_OTHER_NODE = "no_other_node"
    OTHERS_FIRST = "move_after_others"
    NO_MOVE = "no_move_to_cancel"
    MOVE_BEGUN = "move_has_begun"
    MOVES_FOR_REQUEST = "move_for_waiting_request"
