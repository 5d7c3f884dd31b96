"""Forms of second factors. They only parse; services validate."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.people.accounts.mfa.factors import MAX_NAME

CODE = {
    "autocomplete": "one-time-code",
    "inputmode": "numeric",
    "autocapitalize": "none",
    "spellcheck": "false",
}


class AppForm(forms.Form):
    """The first code of a new authenticator app."""

    code = forms.CharField(label=_("Code from the app"), max_length=40, widget=forms.TextInput(attrs=CODE))


class PasskeyNameForm(forms.Form):
    """Name of a passkey."""

    name = forms.CharField(
        label=_("Name"),
        max_length=MAX_NAME,
        help_text=_("For example the device that stores it."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
