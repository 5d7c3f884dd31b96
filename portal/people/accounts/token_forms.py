"""Forms of API tokens. They only parse; services validate."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.forms.boundfield import BoundWidget
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.common.scopes import READING, Scope
from portal.people.accounts.models import AccountKind, Team

EXPIRIES = [
    ("7", _("In 7 days")),
    ("30", _("In 30 days")),
    ("90", _("In 90 days")),
    ("365", _("In 1 year")),
    ("", _("Never")),
]
ENDING = [("", _("Any expiry")), ("7", _("Expires within 7 days")), ("30", _("Expires within 30 days"))]
UNUSED = [("", _("Any last use")), ("30", _("Not used for 30 days")), ("90", _("Not used for 90 days"))]
COMMON_SCOPES = frozenset(
    {
        Scope.ALL.value,
        Scope.WORKSPACES_READ.value,
        Scope.WORKSPACES_WRITE.value,
        Scope.WORKSPACES_CONNECT.value,
        Scope.CATALOG_READ.value,
        Scope.QUOTAS_READ.value,
    }
)
"""Scopes that the page shows first; the others are in a disclosure unless they are chosen."""
OVERLAPS = [("0", _("not at all")), ("1", _("1 hour")), ("24", _("1 day")), ("168", _("1 week"))]


def expiries() -> list[tuple[str, Any]]:
    """Return the lifetime choices, up to `BERTH_TOKEN_MAX_DAYS`."""
    most = settings.BERTH_TOKEN_MAX_DAYS
    if not most:
        return EXPIRIES
    shorter = [(days, label) for days, label in EXPIRIES if days and int(days) < most]
    return [*shorter, ("", _("Maximum: in %(days)d days") % {"days": most})]


class TokenForm(forms.Form):
    """A new API token."""

    name = forms.CharField(
        label=_("Purpose"),
        max_length=80,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "placeholder": _("For example: nightly training")}
        ),
    )
    expires = forms.ChoiceField(label=_("Expires"), required=False)
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[Scope.ALL],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one.")},
    )

    def __init__(self, *args: Any, reading: bool = False, scim: bool = False, **kwargs: Any) -> None:
        """Offer only read scopes, all preselected, with `reading`; offer the SCIM scope with `scim`."""
        super().__init__(*args, **kwargs)
        scopes: Any = self.fields["scopes"]
        if not scim:
            scopes.choices = [choice for choice in Scope.choices if choice[0] != Scope.SCIM]
        expires: Any = self.fields["expires"]
        expires.choices = expiries()
        values = [days for days, _label in expires.choices]
        expires.initial = "90" if "90" in values else values[-1]
        if reading:
            scopes.choices = [choice for choice in Scope.choices if choice[0] in READING]
            scopes.initial = [value for value, _label in scopes.choices]

    def common_scopes(self) -> list[BoundWidget]:
        """Return the checkboxes that are shown at once: common scopes, and those that are chosen."""
        return [option for option in self["scopes"] if _is_common(option)]

    def further_scopes(self) -> list[BoundWidget]:
        """Return the other checkboxes."""
        return [option for option in self["scopes"] if not _is_common(option)]

    def expires_at(self) -> datetime | None:
        """Return the chosen expiry, or None for the latest allowed."""
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None


def _is_common(option: BoundWidget) -> bool:
    return bool(option.data["selected"]) or option.data["value"] in COMMON_SCOPES


class TokenFilterForm(forms.Form):
    """Filters of the token list. Invalid values are ignored."""

    owner = forms.CharField(required=False, max_length=64)
    team = forms.ModelChoiceField(
        queryset=Team.objects.order_by("name"), to_field_name="slug", required=False
    )
    kind = forms.ChoiceField(choices=[("", _("Any user")), *AccountKind.choices], required=False)
    unused = forms.ChoiceField(choices=UNUSED, required=False)
    expires = forms.ChoiceField(choices=ENDING, required=False)
