"""Forms of requests, rules and delegations. They parse display units; services validate."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_resource, format_unit, units_per_whole
from portal.people.accounts.models import Team
from portal.quota.limits import resources
from portal.quota.requests.models import RequestKind

NO_END = ""
DURATIONS = [
    ("4", _("4 hours")),
    ("8", _("8 hours")),
    ("24", _("1 day")),
    ("72", _("3 days")),
    ("168", _("1 week")),
    ("336", _("2 weeks")),
    ("720", _("30 days")),
    ("2160", _("90 days")),
    (NO_END, _("No end")),
]
AS_REQUESTED = "asked"
MAX_AMOUNT = Decimal(10**12)


def base_units(resource: str, amount: Decimal) -> int:
    """Convert an amount in display units to base units: 0.5 GPU is 500."""
    return int((amount * units_per_whole(resource)).to_integral_value())


def end_after(hours: str) -> datetime | None:
    """Return the time `hours` from now, or None without hours."""
    return timezone.now() + timedelta(hours=int(hours)) if hours else None


def format_choice(resource: str) -> str:
    """Return a resource as a choice: name and display unit."""
    unit = format_unit(resource)
    label = format_resource(resource)
    return label if unit.lower() in label.lower() else f"{label} ({unit})"


class Amount(forms.DecimalField):
    """A positive number in display units."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            max_value=MAX_AMOUNT,
            decimal_places=3,
            widget=forms.TextInput(attrs={"inputmode": "decimal", "autocomplete": "off"}),
            **kwargs,
        )


class AskForm(forms.Form):
    """Form for a request: resource and amount, duration, and justification."""

    team = forms.ChoiceField()
    kind = forms.ChoiceField(
        label=_("Request for"),
        choices=[
            (RequestKind.QUOTA, _("The team's quota")),
            (RequestKind.MEMBER_CAP, _("My cap within the team's quota")),
            (RequestKind.LEDGER, _("The team's GPU-hours")),
        ],
    )
    resource = forms.ChoiceField(label=_("Resource"))
    amount = Amount(label=_("Additional amount"))
    lasts = forms.ChoiceField(label=_("Duration"), choices=DURATIONS, required=False, initial="168")
    note = forms.CharField(
        label=_("Purpose"),
        max_length=2000,
        widget=forms.Textarea(
            attrs={"rows": 3, "placeholder": _("For example: fine-tuning for the review on Friday")}
        ),
    )

    def __init__(
        self, *args: Any, teams: Iterable[Team], resource_names: Iterable[str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fields["team"].choices = [(team.slug, team.name) for team in teams]  # type: ignore[attr-defined]
        self.fields["resource"].choices = [(name, format_choice(name)) for name in resource_names]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """Set the resource of requests for GPU-hours, which have no resource field."""
        cleaned = super().clean() or {}
        if cleaned.get("kind") == RequestKind.LEDGER:
            cleaned["resource"] = resources.GPU_HOURS
            self.errors.pop("resource", None)
            cleaned["lasts"] = NO_END
        if cleaned.get("amount") is not None and cleaned.get("resource"):
            cleaned["units"] = base_units(cleaned["resource"], cleaned["amount"])
        return cleaned


class DecideForm(forms.Form):
    """Form for a decision: approve, approve less, or deny with a note."""

    amount = Amount(required=False)
    lasts = forms.ChoiceField(
        label=_("Until"),
        required=False,
        choices=[(AS_REQUESTED, _("As requested")), *DURATIONS[:-1]],
        initial=AS_REQUESTED,
    )
    note = forms.CharField(max_length=2000, required=False)

    def until(self) -> datetime | None:
        """Return the chosen end, or None for the requested one."""
        chosen = self.cleaned_data.get("lasts") or AS_REQUESTED
        return None if chosen == AS_REQUESTED else end_after(chosen)


class RuleForm(forms.Form):
    """Form for an auto-approve rule."""

    resource = forms.ChoiceField(label=_("Resource"))
    amount = Amount(label=_("Maximum per team"))
    hours = forms.IntegerField(
        label=_("Maximum duration (hours)"), min_value=1, max_value=8784, initial=8,
        widget=forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off"}),
    )  # fmt: skip
    team = forms.ChoiceField(required=False)

    def __init__(
        self, *args: Any, teams: Iterable[Team], resource_names: Iterable[str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fields["team"].choices = [  # type: ignore[attr-defined]
            ("", _("All teams")),
            *((team.slug, team.name) for team in teams),
        ]
        self.fields["resource"].choices = [(name, format_choice(name)) for name in resource_names]  # type: ignore[attr-defined]


class DelegationForm(forms.Form):
    """Form for a delegation."""

    delegate = forms.CharField(
        label=_("Delegate"),
        max_length=32,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )
    lasts = forms.ChoiceField(label=_("Duration"), choices=DURATIONS[:-1], initial="168")
