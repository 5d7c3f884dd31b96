"""Form of a webhook. It only parses; services validate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.common.events.event_types import EventType
from portal.notify import type_choices


class WebhookForm(forms.Form):
    """Name, URL and event types of a webhook."""

    name = forms.CharField(
        label=_("Name"),
        max_length=80,
        help_text=_("Name of the receiver, for example “Incident bot”."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    url = forms.CharField(
        label=_("URL"),
        max_length=1000,
        help_text=_("Receives a signed POST request for each event."),
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
        field.choices = [(event_type.name, event_type.summary) for event_type in self._offered]

    def groups(self) -> list[dict[str, Any]]:
        """Return the event types by subject, marking the chosen ones."""
        return type_choices.groups(self._offered, {str(name) for name in self["types"].value() or []})
