"""Form of join requests. It only parses; services validate."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.people.join_requests.models import MAX_MESSAGE


class AskForm(forms.Form):
    """Message to the team's owners."""

    message = forms.CharField(
        label=_("Message to the owners"),
        help_text=_("Who you are and what you want to do. Only owners and operators can read this."),
        max_length=MAX_MESSAGE,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "autocomplete": "off"}),
    )
