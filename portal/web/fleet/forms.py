"""Forms of pools and nodes. They only parse; services apply the rules."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.common.json_input import InvalidJson, parse_json
from portal.common.moment_input import moment_input
from portal.common.slug_field import SlugField, SlugFromName
from portal.fleet.inventory.models import MAX_REASON, PlacementPolicy, RebalancingPolicy
from provisioning.registry import DRIVERS

PLAIN = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}


class PoolForm(SlugFromName):
    """A pool. A change omits the fields that are fixed."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    slug = SlugField(max_length=40)
    name = forms.CharField(label=_("Name"), max_length=80, widget=forms.TextInput(attrs=PLAIN))
    driver = forms.ChoiceField(label=_("Driver"), choices=[(name, name) for name in sorted(DRIVERS)])
    placement_policy = forms.ChoiceField(label=_("Placement"), choices=PlacementPolicy.choices)
    rebalancing = forms.ChoiceField(
        label=_("Moving running work"),
        choices=RebalancingPolicy.choices,
        required=False,
        help_text=_("Moves workspaces to faster devices, with notice. Kernels lose their variables."),
    )
    config = forms.CharField(
        label=_("Driver configuration"),
        required=False,
        max_length=20_000,
        help_text=_('A JSON object, such as {"node": "gpu-1"}. Do not enter secrets: the history stores it.'),
        widget=forms.Textarea(attrs={**PLAIN, "rows": "5", "class": "textarea mono"}),
    )

    def __init__(self, *args: Any, changing: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("slug", "driver") if changing else ("placement_policy", "rebalancing"):
            del self.fields[name]

    def clean_config(self) -> dict[str, Any]:
        text = self.cleaned_data["config"].strip()
        try:
            config = parse_json(text) if text else {}
        except InvalidJson as error:
            raise ValidationError(_("Invalid JSON: %(why)s."), params={"why": str(error)}) from error
        if not isinstance(config, dict):
            raise ValidationError(_("Enter a JSON object."))
        return config

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for services."""
        # A form without this field leaves it unchanged.
        left_out = {"version"} if self.cleaned_data.get("rebalancing") else {"version", "rebalancing"}
        return {name: value for name, value in self.cleaned_data.items() if name not in left_out}


class LocationForm(forms.Form):
    """Rack and block of a node."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    rack = forms.CharField(
        label=_("Rack"), required=False, max_length=63, widget=forms.TextInput(attrs=PLAIN)
    )
    block = forms.CharField(
        label=_("Block"),
        required=False,
        max_length=63,
        help_text=_("Group of racks with fast links between them."),
        widget=forms.TextInput(attrs=PLAIN),
    )

    def labels(self) -> dict[str, str]:
        """Return the arguments for services."""
        return {name: self.cleaned_data[name] for name in ("rack", "block")}


class MaintenanceForm(forms.Form):
    """Maintenance of the site or of a pool."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    reason = forms.CharField(
        label=_("Reason"),
        max_length=MAX_REASON,
        help_text=_("Shown to all users, up to 300 characters."),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    begins_at = forms.DateTimeField(
        label=_("From (UTC)"), required=False, help_text=_("Empty: now."), widget=moment_input()
    )
    ends_at = forms.DateTimeField(
        label=_("Planned end (UTC)"),
        help_text=_("New workspaces start again then. You can change it later."),
        widget=moment_input(),
    )

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments of the service."""
        return {name: self.cleaned_data[name] for name in ("reason", "begins_at", "ends_at")}


def config_text(config: dict[str, Any]) -> str:
    """Return a configuration as text for the form."""
    return json.dumps(config, indent=1, ensure_ascii=False) if config else ""
