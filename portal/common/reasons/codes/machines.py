"""Pools, nodes, devices, their checks, and what nobody owns on them."""

from __future__ import annotations

from enum import StrEnum


class CheckCode(StrEnum):
    """Refusals about GPU checks, and what came of them."""

    CANCELLED = "check_cancelled"
    CHECK_BEGUN = "check_begun"
    LINK_NEEDS_TWO_NODES = "link_needs_two_nodes"
    LINK_NODE_BUSY = "link_node_busy"
    LINK_NOT_AS_IT_SHOULD_BE = "link_not_as_it_should_be"
    LINK_NOT_BY_DRIVER = "link_not_by_driver"
    LINK_NO_ADDRESS = "link_no_address"
    LINK_NO_IDLE_GPU = "link_no_idle_gpu"
    LINK_NO_OTHER_NODE = "link_no_other_node"
    LINK_NO_RDMA = "link_no_rdma"
    LINK_OTHER_END = "link_other_end"
    LINK_OTHER_END_SAYS = "link_other_end_says"
    LINK_PORTS_IN_USE = "link_ports_in_use"
    LINK_WRONG_AT_BOTH = "link_wrong_at_both"
    LINK_WRONG_AT_ONE = "link_wrong_at_one"
    LAYOUT_CHANGE_LOST = "layout_change_lost"
    CHECK_UNDER_WAY = "check_under_way"
    DEVICE_GONE = "device_gone"
    DEVICE_IN_USE = "device_in_use"
    DEVICE_PARTITIONED = "device_partitioned"
    HOURS_NOT_WHOLE = "hours_not_whole"
    HOURS_TOO_MANY = "hours_too_many"
    NODE_NOT_ANSWERING = "node_not_answering"
    NO_SUCH_CHECK = "no_such_check"
    NO_SUCH_LEVEL = "no_such_level"
    NO_VERDICT = "no_verdict"
    REPORT_UNSOUND = "report_unsound"
    RESET_ASKED = "reset_asked"
    RESET_LOSES_INSTANCES = "reset_loses_instances"
    RESET_LOST = "reset_lost"
    RESET_NOT_ADVISED = "reset_not_advised"
    RESET_OF_INSTANCE = "reset_of_instance"
    SETTINGS_NOT_VALID = "check_settings_not_valid"
    WRITE_HOURS = "write_hours"
