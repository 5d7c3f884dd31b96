"""The form of a reclaim policy. The form only parses; the rules are in `policy_documents`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.utils.dates import WEEKDAYS
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import MAX_LIFETIME_H
from portal.reclaim import policy_documents as documents
from portal.reclaim.engine.week import DAYS
from portal.reclaim.models import MAX_DAYS, MAX_MINUTES, MAX_NOTICE_MINUTES, PolicyScope

PLAIN = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
DAY_NAMES = {day: WEEKDAYS[place] for place, day in enumerate(DAYS)}
LABELS = {
    "idle_minutes": _("Idle limit without GPUs (minutes)"),
    "idle_gpu_minutes": _("Idle limit with GPUs (minutes)"),
    "gpu_unused_minutes": _("GPU idle limit (minutes)"),
    "release_gpu_minutes": _("Release GPUs after (minutes)"),
    "longest_hours": _("Maximum lifetime (hours)"),
    "notice_minutes": _("Notice before a stop (minutes)"),
    "archive_days": _("Archive unused home folders after (days)"),
    "delete_days": _("Allow deletion of archived home folders after (days)"),
    "stop_when_spent": _("When the team's GPU-hours are spent"),
    "zone": _("Time zone"),
    "days": _("Days"),
    "work_from": _("Working hours start"),
    "work_until": _("Working hours end"),
    "after_hours_minutes": _("Idle limit outside these hours (minutes)"),
    "stop_at": _("Stop idle workspaces at"),
    "start_at": _("Start stopped workspaces at"),
    "holidays": _("Holidays"),
}


class Dates(forms.CharField):
    """Dates such as 2026-12-25, separated by commas or line breaks."""

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        return text.replace(",", " ").split()


def _integer_field(name: str, most: int, hint: Any) -> forms.IntegerField:
    field = forms.IntegerField(
        label=LABELS[name], min_value=0, max_value=most, required=False, help_text=hint
    )
    field.widget = forms.TextInput(attrs={"inputmode": "numeric", "maxlength": 7, **PLAIN})
    return field


def _time(name: str, hint: Any = "") -> forms.TimeField:
    return forms.TimeField(
        label=LABELS[name],
        required=False,
        input_formats=["%H:%M", "%H:%M:%S"],
        widget=forms.TimeInput(format="%H:%M", attrs={"type": "time"}),
        help_text=hint,
    )


class PolicyForm(forms.Form):
    """The fields of a policy. With `targets` (choices), for a new policy. Team policies have no notice."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    idle_minutes = _integer_field("idle_minutes", MAX_MINUTES, _("For workspaces without GPUs. 0: never."))
    idle_gpu_minutes = _integer_field(
        "idle_gpu_minutes", MAX_MINUTES, _("For workspaces with GPUs. 0: never.")
    )
    gpu_unused_minutes = _integer_field(
        "gpu_unused_minutes", MAX_MINUTES, _("All GPUs at 0 %, whatever else runs. 0: never.")
    )
    release_gpu_minutes = _integer_field(
        "release_gpu_minutes",
        MAX_MINUTES,
        _("When idle, the app restarts without GPUs instead of stopping. 0: never."),
    )
    longest_hours = _integer_field("longest_hours", MAX_LIFETIME_H, _("Extensions included. 0: no limit."))
    notice_minutes = _integer_field(
        "notice_minutes", MAX_NOTICE_MINUTES, _("Minimum. Idle limits cannot be shorter.")
    )
    archive_days = _integer_field(
        "archive_days", MAX_DAYS, _("Days without use. The user is notified first. 0: never.")
    )
    delete_days = _integer_field(
        "delete_days", MAX_DAYS, _("Only administrators can delete them, one at a time. 0: never.")
    )
    stop_when_spent = forms.TypedChoiceField(
        label=LABELS["stop_when_spent"],
        required=False,
        coerce=lambda value: value == "True",
        empty_value=None,
        choices=[("", _("Not set")), ("True", _("Stop workspaces with GPUs")), ("False", _("Continue"))],
    )
    days = forms.MultipleChoiceField(
        label=LABELS["days"],
        required=False,
        choices=[(day, DAY_NAMES[day]) for day in DAYS],
        widget=forms.CheckboxSelectMultiple,
    )
    zone = forms.CharField(
        label=LABELS["zone"],
        max_length=64,
        required=False,
        help_text=_("For example Europe/Berlin."),
        widget=forms.TextInput(attrs={**PLAIN, "list": "zones"}),
    )
    work_from = _time("work_from")
    work_until = _time("work_until")
    after_hours_minutes = _integer_field("after_hours_minutes", MAX_MINUTES, _("Applies if it is shorter."))
    stop_at = _time("stop_at", _("Stops only workspaces that have been idle for 15 minutes."))
    start_at = _time("start_at", _("Workspaces stopped by this schedule, on these days except holidays."))
    holidays = Dates(
        label=LABELS["holidays"],
        required=False,
        max_length=20_000,
        help_text=_("Dates such as 2026-12-25."),
        widget=forms.Textarea(attrs={"rows": "2", "class": "mono", **PLAIN}),
    )

    def __init__(
        self,
        *args: Any,
        of_team: bool = False,
        targets: Sequence[tuple[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.new = targets is not None
        if targets is not None:
            self.fields["for"] = forms.ChoiceField(label=_("Applies to"), choices=list(targets))
        if of_team:
            del self.fields["notice_minutes"], self.fields["delete_days"]
            if self.initial.get("stop_when_spent") != "False":
                # Has no effect for a team, but preserve a value set through REST.
                spent: Any = self.fields["stop_when_spent"]
                spent.choices = spent.choices[:2]

    def given(self) -> dict[str, Any]:
        """Return the fields by their REST names, for the services."""
        return {name: self.cleaned_data[name] for name in documents.FIELDS if name in self.fields}


def initial_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as initial values of the form."""
    spent = document["stop_when_spent"]
    return {**document, "stop_when_spent": "" if spent is None else str(spent)}


def time_zone_names() -> list[str]:
    """Return the names of all offered time zones."""
    return sorted(name for name in available_timezones() if "/" in name or name == "UTC")


def is_team(target: str) -> bool:
    """Return whether `target` is a team."""
    return target.partition(":")[0] == PolicyScope.TEAM
