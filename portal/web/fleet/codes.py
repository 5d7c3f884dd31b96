"""Codes of the GPU map."""

from __future__ import annotations

from enum import StrEnum


class MapCode(StrEnum):
    """Errors about the GPU map."""

    DEVICE_NOT_ON_MAP = "device_not_on_map"
    NODE_NOT_ON_MAP = "node_not_on_map"
    NO_DEVICE_AT_PLACE = "no_device_at_place"
