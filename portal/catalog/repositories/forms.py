"""The form of a user's dotfiles. It parses; services validate."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

PLAIN = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}


class DotfilesForm(forms.Form):
    """A repository, its branch, and the secret with its credentials."""

    url = forms.CharField(
        label=_("Git repository"),
        required=False,
        help_text=_("https://host/path, ssh://git@host/path or git@host:path. Empty: none."),
        widget=forms.TextInput(attrs={**PLAIN, "inputmode": "url"}),
    )
    ref = forms.CharField(
        label=_("Branch, tag or commit"), required=False, widget=forms.TextInput(attrs=PLAIN)
    )
    secret = forms.CharField(
        label=_("Credential"),
        required=False,
        help_text=_("Name of one of your secrets: a token for HTTPS, a private key for SSH."),
        widget=forms.TextInput(attrs=PLAIN),
    )
