"""Form control for a date and time. The site reads and shows times in UTC."""

from __future__ import annotations

from django import forms


def moment_input() -> forms.DateTimeInput:
    """Return the browser's control for a date and time, to the minute."""
    return forms.DateTimeInput(format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local"})
