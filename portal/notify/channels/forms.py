"""Form of a channel. It only parses; services validate."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.common.events.event_types import Audience, types_for
from portal.notify import type_choices
from portal.notify.channels.kinds import SUBJECTS


class ChannelForm(forms.Form):
    """Name, URL and notice kinds of a channel. `of_team` selects the variant for teams."""

    name = forms.CharField(
        label=_("Name"),
        max_length=80,
        help_text=_("For example “Our Slack”."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    url = forms.CharField(
        label=_("Address"),
        max_length=1000,
        help_text=_(
            "The URL for incoming messages of Slack, Teams, Mattermost and others. Anyone who "
            "has it can post there."
        ),
        widget=forms.TextInput(
            attrs={
                "autocomplete": "off",
                "autocapitalize": "none",
                "spellcheck": "false",
                "placeholder": "https://hooks.slack.com/services/…",
            }
        ),
    )
    types = forms.MultipleChoiceField(
        label=_("Notices"),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one kind of notice.")},
    )

    def __init__(self, *args: Any, of_team: bool, has_url: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._offered = types_for(Audience.TEAM) if of_team else []
        types: Any = self.fields["types"]
        types.choices = [(event_type.name, event_type.summary) for event_type in self._offered] or [
            (name, label) for name, (label, _beginnings) in SUBJECTS.items()
        ]
        if has_url:
            self.fields["url"].required = False
            self.fields["url"].help_text = _("Saved, not shown. Enter a new address to replace it.")

    def groups(self) -> list[dict[str, Any]]:
        """Return the event types by subject, for a team's channel."""
        return type_choices.groups(self._offered, {str(name) for name in self["types"].value() or []})

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for the service."""
        data = self.cleaned_data
        return {"name": data["name"], "url": data["url"], "kinds": data["types"]}
