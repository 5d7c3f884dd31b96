"""Codes of the map of GPUs."""

from __future__ import annotations

from enum import StrEnum


class MapCode(StrEnum):
    """Errors about the map of GPUs."""

    DEVICE_NOT_ON_MAP = "device_not_on_map"
    NODE_NOT_ON_MAP = "node_not_on_map"
    NO_DEVICE_AT_PLACE = "no_device_at_place"
