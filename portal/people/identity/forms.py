"""Forms of sign-in providers. They only parse; services validate."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.people.identity.codes import IdentityCode

MAX_CLAIMS = 50_000
_PLAIN = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}


class ClaimsForm(forms.Form):
    """Claims of a provider, as JSON."""

    claims = forms.CharField(
        label=_("Claims as JSON"),
        max_length=MAX_CLAIMS,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "autocomplete": "off"}),
    )

    def clean_claims(self) -> dict[str, Any]:
        try:
            claims = json.loads(self.cleaned_data["claims"])
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(sentence_of(Reason(IdentityCode.CLAIMS_NOT_VALID))) from error
        if not isinstance(claims, dict):
            raise forms.ValidationError(sentence_of(Reason(IdentityCode.CLAIMS_NOT_VALID)))
        return claims


class LookUpForm(forms.Form):
    """Name of a user in a directory."""

    username = forms.CharField(
        label=_("Name at the provider"),
        max_length=150,
        help_text=_("As entered on the sign-in page. No password is needed."),
        widget=forms.TextInput(attrs=_PLAIN),
    )


class LinkForm(forms.Form):
    """Link between an account and an identity at the provider."""

    username = forms.CharField(label=_("Account"), max_length=32, widget=forms.TextInput(attrs=_PLAIN))
    subject = forms.CharField(
        label=_("Subject"),
        max_length=255,
        required=False,
        help_text=_("The provider's permanent identifier of the user."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
    expected = forms.CharField(
        label=_("Or name at the provider"),
        max_length=150,
        required=False,
        help_text=_("The first user who signs in with this name gets the account."),
        widget=forms.TextInput(attrs=_PLAIN),
    )
