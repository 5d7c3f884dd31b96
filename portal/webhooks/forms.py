"""Forms of webhooks. They parse; the rules are in the services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.events.event_types import EventType

SUBJECTS = {
    "workspace": _("Workspaces"),
    "quota_request": _("Requests for more"),
    "grant": _("Grants"),
    "quota": _("Quotas"),
    "budget": _("GPU-hours"),
    "reservation": _("Reservations"),
    "team": _("Teams"),
    "gpu_check": _("GPU checks"),
    "device": _("GPUs"),
    "node": _("Nodes"),
    "pool": _("Pools"),
    "user": _("Accounts"),
    "session": _("Sign-in"),
}
"""What the types of one subject are called together."""


class WebhookForm(forms.Form):
    """What receives events, where, and which."""

    name = forms.CharField(
        label=_("Name"),
        max_length=80,
        help_text=_("What receives them, as “Incident bot”."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    url = forms.CharField(
        label=_("URL"),
        max_length=1000,
        help_text=_("It gets a signed POST for each event."),
        widget=forms.TextInput(
            attrs={
                "inputmode": "url",
                "autocomplete": "off",
                "autocapitalize": "none",
                "spellcheck": "false",
                "placeholder": "https://example.org/hooks/berth",
            }
        ),
    )
    types = forms.MultipleChoiceField(
        label=_("Events"),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one type of event.")},
    )

    def __init__(self, *args: Any, offered: Iterable[EventType], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offered = list(offered)
        field: Any = self.fields["types"]
        field.choices = [(each.name, each.summary) for each in self._offered]

    def groups(self) -> list[dict[str, Any]]:
        """The types by subject, for the page: what each is called, and whether it is chosen."""
        field = self["types"]
        chosen = {str(name) for name in field.value() or []}
        found: dict[str, dict[str, Any]] = {}
        for number, each in enumerate(self._offered):
            group = found.setdefault(each.subject, {"label": SUBJECTS[each.subject], "types": []})
            group["types"].append(
                {
                    "name": each.name,
                    "summary": each.summary,
                    "id": f"type-{number}",
                    "on": each.name in chosen,
                }
            )
        for group in found.values():
            group["count"] = sum(each["on"] for each in group["types"])
        return list(found.values())
