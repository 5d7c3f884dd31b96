"""Forms of sign-in, teams and tokens. They parse; the rules are in the services."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import Role
from portal.common.scopes import READING, Scope

EXPIRIES = [
    ("7", _("In 7 days")),
    ("30", _("In 30 days")),
    ("90", _("In 90 days")),
    ("365", _("In a year")),
    ("", _("Never")),
]


class SignInForm(AuthenticationForm):
    """Django's, with words that say what to do."""

    error_messages = {
        "invalid_login": _("Name and password do not match. The password is case-sensitive."),
        "inactive": _("This account is deactivated. Ask an administrator."),
    }


class NewPasswordForm(forms.Form):
    """A password, typed twice. Whether it will do is for the service to say."""

    password = forms.CharField(
        label=_("Password"),
        strip=False,
        help_text=_("At least 10 characters, and not one of the passwords that everybody uses."),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    repeated = forms.CharField(
        label=_("The same again"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("password") and given.get("repeated") and given["password"] != given["repeated"]:
            self.add_error("repeated", _("The two passwords differ."))
        return given


class ChangePasswordForm(forms.Form):
    """Another password for oneself, and what becomes of one's tokens."""

    old_password = forms.CharField(
        label=_("Present password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    new_password = forms.CharField(
        label=_("New password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    repeated = forms.CharField(
        label=_("The same again"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    end_tokens = forms.BooleanField(required=False)

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("new_password") and given.get("repeated") and given["new_password"] != given["repeated"]:
            self.add_error("repeated", _("The two passwords differ."))
        return given


class EmailForm(forms.Form):
    """Another address for oneself, which the password allows."""

    email = forms.EmailField(
        label=_("E-mail"), required=False, widget=forms.EmailInput(attrs={"autocomplete": "email"})
    )
    password = forms.CharField(
        label=_("Your password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


class ForgottenForm(forms.Form):
    """Whose password has been forgotten."""

    name = forms.CharField(
        label=_("Name or e-mail address"),
        max_length=254,
        widget=forms.TextInput(
            attrs={"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )


class TeamForm(forms.Form):
    """A new team."""

    name = forms.CharField(max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    slug = forms.CharField(
        label=_("Short name"),
        max_length=40,
        help_text=_("Lower-case letters, digits and hyphens. It cannot be changed later."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )


class MemberForm(forms.Form):
    """Somebody to add to a team."""

    username = forms.CharField(
        label=_("Name"),
        max_length=32,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )
    role = forms.ChoiceField(choices=Role.choices, initial=Role.MEMBER)


class TokenForm(forms.Form):
    """A new API token."""

    name = forms.CharField(
        label=_("What is it for?"),
        max_length=80,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "placeholder": _("For example: nightly training")}
        ),
    )
    expires = forms.ChoiceField(label=_("Expires"), choices=EXPIRIES, initial="90", required=False)
    scopes = forms.MultipleChoiceField(
        choices=Scope.choices,
        initial=[Scope.ALL],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": _("Choose at least one.")},
    )

    def __init__(self, *args: Any, reading: bool = False, **kwargs: Any) -> None:
        """`reading`: only scopes that read are offered, all of them chosen."""
        super().__init__(*args, **kwargs)
        if reading:
            scopes: Any = self.fields["scopes"]
            scopes.choices = [choice for choice in Scope.choices if choice[0] in READING]
            scopes.initial = [value for value, _label in scopes.choices]

    def expires_at(self) -> datetime | None:
        """The moment that was chosen, or None for never."""
        days = self.cleaned_data["expires"]
        return timezone.now() + timedelta(days=int(days)) if days else None


def add_problems(form: forms.Form, problems: dict[str, list[str]], message: str) -> None:
    """Show a service's refusal at the fields it names, and what remains above the form."""
    named = {name: texts for name, texts in problems.items() if name in form.fields}
    for name, texts in named.items():
        form.add_error(name, texts)
    if not named:
        form.add_error(None, message)


def form_status(form: Any) -> int:
    """400 for a form that was sent and refused, so that programs and caches see it too."""
    return 400 if form is not None and form.is_bound and form.errors else 200
