"""Forms of service accounts. They only parse; services validate."""

from __future__ import annotations

import json
from typing import Any

import jwt
from django import forms
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.scopes import Scope
from portal.people.accounts.token_forms import OVERLAPS, TokenForm
from portal.people.service_accounts.codes import ExchangeCode
from portal.people.service_accounts.exchange import issuers
from portal.people.service_accounts.exchange.assertions import MAX_TOKEN
from portal.people.service_accounts.exchange.conditions import Condition, parse

LIFETIMES = [
    ("300", _("5 minutes")),
    ("600", _("10 minutes")),
    ("1800", _("30 minutes")),
    ("3600", _("1 hour")),
]
MAX_LIFETIMES = [
    ("3600", _("1 hour")),
    ("21600", _("6 hours")),
    ("86400", _("1 day")),
    ("432000", _("5 days")),
]
_NAME = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}


class NewAccountForm(forms.Form):
    """A new service account."""

    name = forms.CharField(
        label=_("Name"),
        max_length=32,
        help_text=_("The username is svc- followed by this name. Cannot be changed later."),
        widget=forms.TextInput(attrs={**_NAME, "placeholder": "ci"}),
    )
    description = forms.CharField(
        label=_("Purpose"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class DescriptionForm(forms.Form):
    """Description of a service account."""

    description = forms.CharField(
        label=_("Purpose"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class ServiceTokenForm(TokenForm):
    """A token of a service account. No scopes are preselected."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scopes: Any = self.fields["scopes"]
        scopes.initial = ["workspaces:read", "workspaces:write"]


class RuleForm(forms.Form):
    """A trust rule. `conditions` has one condition per line."""

    name = forms.CharField(
        label=_("Name"), max_length=80, widget=forms.TextInput(attrs={**_NAME, "placeholder": "deploy"})
    )
    issuer = forms.ChoiceField(label=_("Issuer"))
    audience = forms.CharField(
        label=_("Audience"),
        max_length=255,
        help_text=_(
            "The audience that the job requests for its token. Use one that no other service accepts."
        ),
        widget=forms.TextInput(attrs=_NAME),
    )
    conditions = forms.CharField(
        label=_("Conditions"),
        max_length=4000,
        help_text=_(
            "One per line: “claim = value” or “claim ~ pattern”. In a pattern, * matches "
            "everything except “/”, ** everything. All conditions must match. One must identify "
            "the owner of the pipeline."
        ),
        widget=forms.Textarea(attrs={**_NAME, "rows": 5}),
    )
    lifetime = forms.ChoiceField(
        label=_("Renew tokens within"),
        choices=LIFETIMES,
        initial="600",
        help_text=_("The portal deletes the workspaces of a job that stops renewing its token."),
    )
    max_lifetime = forms.ChoiceField(label=_("Longest job"), choices=MAX_LIFETIMES, initial="21600")
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=["workspaces:read", "workspaces:write"],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one.")},
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        issuer: Any = self.fields["issuer"]
        issuer.choices = [(name, name) for name in issuers.allowed()]

    def clean_conditions(self) -> list[Condition]:
        conditions, wrong = parse(self.cleaned_data["conditions"])
        if wrong:
            raise forms.ValidationError(sentence_of(Reason(ExchangeCode.CONDITION_LINE, {"line": wrong[0]})))
        return conditions

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for the service."""
        data = self.cleaned_data
        fields = {name: data[name] for name in ("name", "issuer", "audience", "conditions", "scopes")}
        lifetimes = {f"{name}_s": int(data[name]) for name in ("lifetime", "max_lifetime")}
        return {**fields, **lifetimes}


class ClaimsForm(forms.Form):
    """Claims of a token, as JSON or as the token itself."""

    claims = forms.CharField(
        label=_("Claims of a token"),
        max_length=MAX_TOKEN,
        widget=forms.Textarea(
            attrs={**_NAME, "rows": 6, "placeholder": '{"iss": "…", "aud": "…", "sub": "…"}'}
        ),
    )

    def clean_claims(self) -> dict[str, Any]:
        """Return the claims. The signature of a token is not verified."""
        text = self.cleaned_data["claims"].strip()
        try:
            claims: dict[str, Any] = json.loads(text) if text.startswith("{") else _unverified(text)
        except (ValueError, RecursionError, jwt.PyJWTError) as error:
            raise forms.ValidationError(sentence_of(Reason(ExchangeCode.CLAIMS_NOT_UNDERSTOOD))) from error
        return claims


def _unverified(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


class RotateForm(forms.Form):
    """Overlap of the old and new token."""

    overlap = forms.ChoiceField(label=_("Old token stays valid for"), choices=OVERLAPS, initial="24")
