"""Form of an announcement. The form only parses; services validate."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.common.moment_input import moment_input
from portal.fleet.announcements.models import MAX_TEXT, AnnouncementKind
from portal.fleet.inventory.models import Pool


class AnnouncementForm(forms.Form):
    """Text, kind, audience and times of an announcement."""

    text = forms.CharField(
        label=_("Text"),
        help_text=_("Plain text, up to 500 characters."),
        max_length=MAX_TEXT,
        widget=forms.Textarea(attrs={"rows": 3, "autocomplete": "off"}),
    )
    kind = forms.ChoiceField(
        label=_("Kind"),
        choices=AnnouncementKind.choices,
        help_text=_("Users can dismiss information, but not warnings."),
    )
    pool = forms.ModelChoiceField(
        Pool.objects.filter(deleted_at=None).order_by("slug"),
        label=_("Shown to"),
        required=False,
        empty_label=_("All users"),
        help_text=_("If you choose a pool: only users whose teams can use it."),
    )
    begins_at = forms.DateTimeField(
        label=_("From (UTC)"), required=False, help_text=_("Empty: now."), widget=moment_input()
    )
    ends_at = forms.DateTimeField(
        label=_("Until (UTC)"),
        required=False,
        help_text=_("Empty: until you end it."),
        widget=moment_input(),
    )
    version = forms.CharField(required=False, widget=forms.HiddenInput)

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments of the service."""
        return {name: value for name, value in self.cleaned_data.items() if name != "version"}
