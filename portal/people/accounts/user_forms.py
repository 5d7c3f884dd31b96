"""Forms about users. They only parse; services validate."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.people.accounts.models import Role, SiteRole, Team

_NAME = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}


class InviteForm(forms.Form):
    """Invitation of a user, optionally into one team."""

    username = forms.CharField(
        label=_("Name"),
        max_length=32,
        help_text=_("Lower-case letters, digits, dots, hyphens. Cannot be changed later."),
        widget=forms.TextInput(attrs=_NAME),
    )
    email = forms.EmailField(
        label=_("E-mail"), required=False, widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )
    team = forms.ModelChoiceField(
        label=_("Team"),
        queryset=Team.objects.order_by("name"),
        to_field_name="slug",
        required=False,
        empty_label=_("No team"),
    )
    role = forms.ChoiceField(label=_("Role in the team"), choices=Role.choices, initial=Role.MEMBER)
    roles = forms.MultipleChoiceField(
        label=_("Roles in the portal"),
        choices=SiteRole.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for the service."""
        data = self.cleaned_data
        return {
            "username": data["username"],
            "email": data["email"],
            "teams": {data["team"].slug: data["role"]} if data["team"] else {},
            "roles": data["roles"],
        }


class UserForm(forms.Form):
    """Changes of an account by an administrator."""

    email = forms.EmailField(
        label=_("E-mail"), required=False, widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )
    roles = forms.MultipleChoiceField(
        label=_("Roles in the portal"),
        choices=SiteRole.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
