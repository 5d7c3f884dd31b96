"""Forms of sign-in and teams. They only parse; services validate."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import sentence_of
from portal.common.slug_field import SlugField, SlugFromName
from portal.people.accounts.models import Role, TeamEgress
from portal.people.accounts.team_egress import MAX_ALLOW


class SignInForm(AuthenticationForm):
    """Django's form with messages that suggest a next action."""

    error_messages = {
        "invalid_login": _("Wrong name or password. Passwords are case-sensitive."),
        "inactive": _("This account is deactivated. Ask an administrator."),
    }

    def get_invalid_login_error(self) -> ValidationError:
        """Return Django's error, or why a directory refuses the sign-in or does not answer."""
        reason = getattr(self.request, "sign_in_reason", None)
        if reason is None:
            return super().get_invalid_login_error()
        return ValidationError(sentence_of(reason), code="refused")


class NewPasswordForm(forms.Form):
    """A new password, entered twice. Validated by the service."""

    password = forms.CharField(
        label=_("Password"),
        strip=False,
        help_text=_("At least 10 characters, not a common password."),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    repeated = forms.CharField(
        label=_("Repeat password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("password") and data.get("repeated") and data["password"] != data["repeated"]:
            self.add_error("repeated", _("The passwords do not match."))
        return data


class ChangePasswordForm(forms.Form):
    """Form for users to change their own password and optionally revoke their tokens."""

    old_password = forms.CharField(
        label=_("Current password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    new_password = forms.CharField(
        label=_("New password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    repeated = forms.CharField(
        label=_("Repeat password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    end_tokens = forms.BooleanField(required=False)

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("new_password") and data.get("repeated") and data["new_password"] != data["repeated"]:
            self.add_error("repeated", _("The passwords do not match."))
        return data


class EmailForm(forms.Form):
    """A new e-mail address of the user, confirmed by the password."""

    email = forms.EmailField(
        label=_("E-mail"), required=False, widget=forms.EmailInput(attrs={"autocomplete": "email"})
    )
    password = forms.CharField(
        label=_("Your password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )


class ForgotPasswordForm(forms.Form):
    """Request for a password reset link."""

    name = forms.CharField(
        label=_("Name or e-mail address"),
        max_length=254,
        widget=forms.TextInput(
            attrs={"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )


class TeamForm(SlugFromName):
    """A new team."""

    name = forms.CharField(max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    slug = SlugField(max_length=40)


class TeamNameForm(forms.Form):
    """A new name of a team."""

    name = forms.CharField(max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"}))


class TeamEgressForm(forms.Form):
    """Egress policy of a team's workspaces."""

    egress = forms.ChoiceField(
        label=_("Network access of workspaces"),
        required=False,
        choices=TeamEgress.choices,
        help_text=_("Limited by pool, node and template."),
    )
    egress_allow = forms.CharField(
        label=_("Hosts and networks"),
        max_length=MAX_ALLOW,
        required=False,
        help_text=_(
            "For “Only listed hosts”, for example packages.example, *.example.org, "
            "git.example.org:22, 10.1.0.0/16."
        ),
        widget=forms.Textarea(
            attrs={"class": "mono", "rows": "3", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )
    version = forms.CharField(required=False, widget=forms.HiddenInput)


class MemberForm(forms.Form):
    """A user to add to a team."""

    username = forms.CharField(
        label=_("Name"),
        max_length=32,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )
    role = forms.ChoiceField(choices=Role.choices, initial=Role.MEMBER)


def add_problems(form: forms.Form, problems: dict[str, list[str]], message: str) -> None:
    """Show a service's errors at the fields they name, or `message` above the form if none match."""
    field_problems = {name: texts for name, texts in problems.items() if name in form.fields}
    for name, texts in field_problems.items():
        form.add_error(name, texts)
    if not field_problems:
        form.add_error(None, message)


def form_status(form: Any) -> int:
    """Return 400 for a form with errors, else 200."""
    return 400 if form is not None and form.is_bound and form.errors else 200
