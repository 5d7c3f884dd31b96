"""Badges of runs and the form that repeats a run, shared by handlers and pages."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise


@dataclass(frozen=True, slots=True)
class StateBadge:
    """The word, icon and colour of a state."""

    word: str | Promise
    icon: str
    tone: str

    @property
    def spin(self) -> str:
        return "spin" if self.icon == "loader-2" else ""


@dataclass(frozen=True, slots=True)
class RepeatForm:
    """The form to repeat a run: URL, field, hidden fields, and the label of its button."""

    url: str
    name: str
    value: str
    label: str
    hidden: tuple[tuple[str, str], ...] = ()
