"""Codes of errors about actions on selected workspaces."""

from __future__ import annotations

from enum import StrEnum


class SelectionCode(StrEnum):
    """Why an action on selected workspaces cannot be previewed."""

    NOTHING = "nothing_selected"
    TOO_MANY = "too_many_selected"
