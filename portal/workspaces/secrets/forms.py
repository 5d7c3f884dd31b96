"""Forms of secrets. They only parse; services apply the rules. A submitted value is never shown again."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.workspaces.secrets.models import SecretKind
from portal.workspaces.secrets.places import MAX_KEY, MAX_PATH, is_configured
from portal.workspaces.secrets.services import MAX_DESCRIPTION

PLACE = ("value", "vault_path", "vault_key")
"""The fields for a value or its path and key in Vault."""


class ValueInput(forms.Textarea):
    """A textarea that never renders its value."""

    def format_value(self, value: Any) -> str:
        return ""


class ChangeForm(forms.Form):
    """A form for a new value or path in Vault, a description, and the option for every workspace.

    The Vault fields are omitted if no Vault is configured, unless the secret is already in Vault.
    """

    value = forms.CharField(
        label=_("Value"),
        strip=False,
        required=False,
        help_text=_("Not shown again. Leave empty to keep the current value."),
        widget=ValueInput(
            attrs={"rows": 3, "autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
        ),
    )
    vault_path = forms.CharField(
        label=_("Or path in Vault"),
        required=False,
        max_length=MAX_PATH,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false", "class": "mono"}
        ),
    )
    vault_key = forms.CharField(
        label=_("Key"),
        required=False,
        max_length=MAX_KEY,
        help_text=_("Name of the entry at this path."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false", "class": "mono"}
        ),
    )
    description = forms.CharField(
        label=_("Description"),
        required=False,
        max_length=MAX_DESCRIPTION,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    everywhere = forms.BooleanField(label=_("Include in every workspace"), required=False)

    def __init__(
        self, *args: Any, of_template: bool, folders: list[str], in_vault: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.offers_vault = in_vault or (is_configured() and bool(folders))
        if not self.offers_vault:
            del self.fields["vault_path"], self.fields["vault_key"]
        else:
            self.fields["vault_path"].help_text = (
                _("Below %(folders)s. Read at every start of a workspace.") % {"folders": ", ".join(folders)}
                if folders
                else ""
            )
        if of_template:
            # A template's secrets always go to all of its workspaces.
            del self.fields["everywhere"]

    def clean_value(self) -> str:
        """Convert the CR LF line ends of browsers to LF."""
        return str(self.cleaned_data["value"]).replace("\r\n", "\n")

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for services, except the value and its path in Vault."""
        return {name: self.cleaned_data[name] for name in self.fields if name not in (*PLACE, "name")}

    def value_or_place(self) -> dict[str, Any]:
        """Return the value, or its path and key in Vault."""
        return {name: self.cleaned_data.get(name, "") for name in PLACE}


class NewForm(ChangeForm):
    """A form for a new secret."""

    name = forms.CharField(
        label=_("Name"),
        max_length=100,
        help_text=_("For example WANDB_API_KEY."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "characters", "spellcheck": "false"}
        ),
    )
    kind = forms.ChoiceField(
        label=_("Provided as"),
        choices=SecretKind.choices,
        help_text=_("A file is $BERTH_SECRETS_DIR/NAME."),
    )
    field_order = ("name", "kind", "value", "vault_path", "vault_key", "description", "everywhere")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["value"].required = not self.offers_vault
        self.fields["value"].help_text = _("Text up to 64 KiB. Not shown again.")
