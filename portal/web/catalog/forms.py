"""Forms of templates and flavors. They only parse; services apply the rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from portal.catalog import rules
from portal.catalog.models import (
    COMPUTE_CAPABILITIES,
    LARGEST,
    MAX_ACCELERATORS,
    MAX_EXPECTED_HOURS,
    MAX_LIFETIME_H,
    MAX_NODES,
    MAX_PRICE_CENTS,
    MAX_TIMEOUT_S,
    Activity,
    Bond,
    TemplateEgress,
    UpstreamAuth,
    WorkLost,
)
from portal.common.completion import LONGEST_SLUG, CompletedInput, offer_choices, truncate_options
from portal.common.json_input import InvalidJson, parse_json
from portal.common.slug_field import SlugField, SlugFromName
from portal.fleet.inventory.models import Pool
from portal.web.catalog.environments import EnvironmentChoice

PLAIN = {"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}
CODE = {**PLAIN, "class": "textarea mono", "rows": "6"}
MILLI = 1000
MIB_PER_GIB = 1024
CENTS = 100


class Arguments(forms.CharField):
    """A command: one argument per line, or a JSON list if an argument contains line breaks."""

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not value:
            return ""
        plain = all(argument and "\n" not in argument and argument == argument.strip() for argument in value)
        return "\n".join(value) if plain and not value[0].startswith("[") else json.dumps(value, indent=1)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        if not text.lstrip().startswith("["):
            return [line.strip() for line in text.splitlines() if line.strip()]
        return _json(text)


class Variables(forms.CharField):
    """Environment variables: `NAME=value` per line, or a JSON object if a value contains line breaks."""

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if any("\n" in item or item != item.strip() for item in value.values()):
            return json.dumps(value, indent=1)
        return "\n".join(f"{name}={text}" for name, text in value.items())

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        if text.lstrip().startswith("{"):
            return _json(text)
        variables = {}
        for line in filter(None, (line.strip() for line in text.splitlines())):
            name, equals, content = line.partition("=")
            if not equals:
                raise ValidationError(
                    _("Enter “NAME=value” on each line. “%(line)s” has no “=”."), params={"line": line[:60]}
                )
            variables[name.strip()] = content
        return variables


class NameListField(forms.CharField):
    """Slugs or models, separated by commas or lines."""

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        return [name.strip() for name in text.replace("\n", ",").split(",") if name.strip()]


class Amount(forms.DecimalField):
    """An amount in a display unit, stored in a unit smaller by `factor`, such as cents, MiB or seconds."""

    def __init__(self, *, factor: int, **options: Any) -> None:
        self.factor = factor
        options.setdefault("widget", forms.TextInput(attrs={"inputmode": "decimal", **PLAIN}))
        super().__init__(max_digits=14, decimal_places=4, **options)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        amount = (Decimal(value) / self.factor).quantize(Decimal("0.0001"))
        return f"{amount.normalize():f}"

    def clean(self, value: Any) -> Any:
        text = str(value or "").strip().replace(",", ".")
        amount = super().clean(text)
        return None if amount is None else round(amount * self.factor)


class Hours(Amount):
    """Hours, with fractions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(factor=1, **options)

    def prepare_value(self, value: Any) -> Any:
        return f"{round(Decimal(value), 4).normalize():f}" if isinstance(value, (int, float)) else value

    def clean(self, value: Any) -> Any:
        hours = forms.DecimalField.clean(self, str(value or "").strip().replace(",", "."))
        return None if hours is None else float(hours)


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except InvalidJson as error:
        raise ValidationError(_("Invalid JSON: %(why)s."), params={"why": str(error)}) from error


def _integer(
    label: Any, minimum: int, maximum: int, hint: Any = "", *, required: bool = True
) -> forms.IntegerField:
    field = forms.IntegerField(
        label=label, min_value=minimum, max_value=maximum, help_text=hint, required=required
    )
    field.widget = forms.TextInput(attrs={"inputmode": "numeric", **PLAIN})
    return field


def _text(label: Any, maximum: int, hint: Any = "", *, required: bool = False) -> forms.CharField:
    return forms.CharField(
        label=label,
        max_length=maximum,
        required=required,
        help_text=hint,
        widget=forms.TextInput(attrs=PLAIN),
    )


class EntryForm(SlugFromName):
    """Common fields of templates and flavors."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    slug = SlugField(max_length=60)
    name = _text(_("Name"), 80, required=True)
    description = _text(_("Description"), 200, _("One sentence that helps users choose."))
    position = _integer(_("Position in the list"), 0, LARGEST, _("Smaller numbers come first."))
    enabled = forms.BooleanField(label=_("Enabled"), required=False)
    deprecated = forms.BooleanField(label=_("Deprecated"), required=False)
    successor = _text(_("Successor"), 81, _("Slug of the replacement, if deprecated."))
    audience = forms.ChoiceField(
        label=_("Available to"),
        choices=[("all", _("Everyone")), ("teams", _("Only these teams"))],
        widget=forms.RadioSelect,
    )
    teams = NameListField(
        label=_("Teams"),
        required=False,
        help_text=_("Slugs, separated by commas."),
        widget=forms.TextInput(attrs=PLAIN),
    )
    default_lifetime_hours = _integer(
        _("Hours until it stops"),
        0,
        MAX_LIFETIME_H,
        _("Default for users. 0: no end. The shorter of template and flavor applies. Default: site setting."),
        required=False,
    )
    max_lifetime_hours = _integer(
        _("Maximum hours"),
        0,
        MAX_LIFETIME_H,
        _(
            "Extensions included. 0: no limit. The shorter of template and flavor applies. "
            "Default: site setting."
        ),
        required=False,
    )
    FIXED: tuple[str, ...] = ("slug",)
    COMPLETED = ""
    """Name of the URL that completes slugs of the same kind."""

    def __init__(self, *args: Any, changing: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["successor"].widget = CompletedInput(
            url=reverse(self.COMPLETED), attrs={"maxlength": LONGEST_SLUG}
        )
        if changing:
            for name in self.FIXED:
                self.fields.pop(name, None)

    def check_live(self, url: str) -> None:
        """Let the page send the form to `url` whenever a field has changed.

        Fields with completion request their options instead.
        """
        for field in self.fields.values():
            if not isinstance(field.widget, CompletedInput):
                field.widget.attrs |= {"hx-post": url, "hx-trigger": "change"}

    def drop_missing(self, changed: str) -> None:
        """Remove the errors of empty required fields except `changed`, as users have not reached them yet."""
        for name, errors in list(self.errors.as_data().items()):
            if name != changed and any(error.code == "required" for error in errors):
                del self.errors[name]

    def service_arguments(self) -> dict[str, Any]:
        """Return the arguments for services, with the field names of REST."""
        document = {name: value for name, value in self.cleaned_data.items() if name != "version"}
        audience = document.pop("audience", None)
        if audience is not None:
            document["teams"] = document["teams"] if audience == "teams" else None
        document["successor"] = document.get("successor") or None
        return document


class TemplateForm(EntryForm):
    """A form for a template. `own` omits the fields that only site templates have."""

    program = _text(
        _("Program"), 80, _("Program that nodes must have, such as jupyter-lab or bash."), required=True
    )
    argv = Arguments(
        label=_("Command"),
        max_length=100_000,
        help_text=_("One argument per line. {port}, {home}, {token}, {token_file} and {name} are replaced."),
        widget=forms.Textarea(attrs=CODE),
    )
    startup = forms.CharField(
        label=_("Startup script"),
        max_length=8000,
        required=False,
        strip=False,
        help_text=_("Shell commands that run first, in the same sandbox. If they fail, the start fails."),
        widget=forms.Textarea(attrs={**CODE, "rows": "4"}),
    )
    env = Variables(
        label=_("Environment variables"),
        max_length=100_000,
        required=False,
        help_text=_(
            "One NAME=value per line. All users of the template can read them. Do not enter secrets."
        ),
        widget=forms.Textarea(attrs={**CODE, "rows": "4"}),
    )
    icon = forms.ChoiceField(
        label=_("Icon"), required=False, choices=[("", _("None")), *((icon, icon) for icon in rules.ICONS)]
    )
    ready_path = _text(_("Readiness path"), 200, required=True)
    open_path = _text(_("Start path"), 200, required=True)
    upstream_auth = forms.ChoiceField(
        label=_("App sign-in"),
        choices=UpstreamAuth.choices,
        help_text=_("How the gateway sends the token to the app."),
    )
    egress = forms.ChoiceField(
        label=_("Network access"),
        required=False,
        choices=TemplateEgress.choices,
        help_text=_("Limited by pool and node."),
    )
    egress_allow = forms.CharField(
        label=_("Hosts and networks"),
        max_length=4000,
        required=False,
        help_text=_(
            "For “Only listed hosts”, for example packages.example, *.example.org, "
            "git.example.org:22, 10.1.0.0/16."
        ),
        widget=forms.Textarea(attrs={**CODE, "rows": "2"}),
    )
    git_url = _text(
        _("Git repository"), 500, _("Workspaces clone it at their start, unless the user chooses another.")
    )
    git_ref = _text(_("Branch, tag or commit"), 200, _("Empty: the default branch."))
    git_secret = _text(
        _("Credential"), 64, _("Name of a secret of the template or team with access to the repository.")
    )
    dotfiles_url = _text(_("Dotfiles"), 500, _("A Git repository for users without their own dotfiles."))
    mounts = NameListField(
        label=_("Node folders"),
        required=False,
        max_length=400,
        help_text=_(
            "Names that nodes list in BERTH_MOUNTS, separated by commas. NAME:rw allows writing. "
            "Mounted at /data/NAME."
        ),
        widget=forms.TextInput(attrs=PLAIN),
    )
    environment = forms.ChoiceField(
        label=_("Environment"),
        required=False,
        help_text=_("Software of the workspaces, unless the user chooses another."),
    )
    activity = forms.ChoiceField(label=_("Activity"), required=False, choices=Activity.choices)
    min_cuda = _text(_("Minimum CUDA version"), 6, _("For example 12.4, for accelerators."))
    min_compute_capability = forms.ChoiceField(
        label=_("Minimum compute capability"),
        required=False,
        choices=[("", _("Any")), *((capability, capability) for capability in COMPUTE_CAPABILITIES)],
    )
    work_lost = forms.ChoiceField(label=_("Work is lost at preemption"), choices=WorkLost.choices)
    start_timeout_s = _integer(_("Start timeout"), 5, MAX_TIMEOUT_S, _("In seconds."))
    stop_timeout_s = _integer(_("Stop timeout"), 0, 300, _("In seconds."))
    install_hint = _text(_("If the program is missing"), 200, _("Instructions for the operator."))
    service_workers = forms.BooleanField(
        label=_("Allow service workers"),
        required=False,
        help_text=_("Service workers outlive the page and a restart. Enable only for apps that need them."),
    )
    COMPLETED = "catalog_pages:complete-templates"
    SITE = ("audience", "teams", "service_workers", "mounts")

    def __init__(
        self,
        *args: Any,
        own: bool = False,
        environments: Iterable[EnvironmentChoice] = (),
        team: str = "",
        folders: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        offer_choices(
            self,
            "environment",
            truncate_options(
                (environment.environment.slug, environment.label) for environment in environments
            ),
            url=f"{reverse('catalog_pages:complete-environments')}?{urlencode({'team': team})}",
            none=_("Software of the node"),
        )
        folder_hint = _("Nodes provide %(folders)s.") % {"folders": ", ".join(folders)}
        self.fields["mounts"].help_text = f"{self.fields['mounts'].help_text} " + (
            folder_hint if folders else _("No node provides folders yet.")
        )
        if own:
            for name in self.SITE:
                del self.fields[name]

    def clean_startup(self) -> str:
        """Convert line ends, because a shell would read a carriage return as part of the last word."""
        return str(self.cleaned_data["startup"]).replace("\r\n", "\n").replace("\r", "\n")

    def service_arguments(self) -> dict[str, Any]:
        document = super().service_arguments()
        return {**document, "environment": document["environment"] or None}


class FlavorForm(EntryForm):
    """A form for a flavor, in display units."""

    cpu_milli = Amount(label=_("CPU cores"), factor=MILLI, min_value=Decimal("0.1"))
    memory_mib = Amount(label=_("Memory in GiB"), factor=MIB_PER_GIB, min_value=Decimal("0.125"))
    disk_mib = Amount(label=_("Scratch disk in GiB"), factor=MIB_PER_GIB, min_value=0)
    nodes = _integer(_("Nodes"), 1, MAX_NODES)
    accelerator_count = _integer(_("Accelerators per node"), 0, MAX_ACCELERATORS)
    accelerator_models = NameListField(
        label=_("Models"),
        required=False,
        max_length=2000,
        help_text=_("Any of these names from the GPU map, separated by commas. Empty: any model."),
        widget=forms.TextInput(attrs=PLAIN),
    )
    accelerator_memory_mib = Amount(
        label=_("Minimum GPU memory in GiB"), factor=MIB_PER_GIB, min_value=0, help_text=_("0: any.")
    )
    accelerator_milli = Amount(
        label=_("Share of each accelerator in %"),
        factor=10,
        min_value=Decimal("0.1"),
        max_value=100,
        help_text=_("100: whole accelerators."),
    )
    mig_profile = _text(_("MIG profile"), 40, _("For example 1g.10gb, for MIG instances."))
    within = forms.ChoiceField(label=_("Accelerators must share"), choices=Bond.choices)
    expected_hours = Hours(
        label=_("Expected hours"),
        min_value=Decimal("0.017"),
        max_value=MAX_EXPECTED_HOURS,
        help_text=_("Used for estimates."),
    )
    price_cents = Amount(
        label=_("Price per hour"),
        factor=CENTS,
        required=False,
        min_value=0,
        max_value=Decimal(MAX_PRICE_CENTS) / CENTS,
        help_text=_("Including accelerators, in the site's currency. Empty: no price."),
    )
    pool = forms.ModelChoiceField(
        label=_("Pool"),
        queryset=Pool.objects.none(),
        to_field_name="slug",
        required=False,
        empty_label=_("All real pools"),
    )
    work_lost = forms.ChoiceField(
        label=_("Work is lost at preemption"),
        required=False,
        choices=[("", _("As the template")), *WorkLost.choices],
    )
    preemptible = forms.BooleanField(label=_("Can be preempted"), required=False)
    COMPLETED = "catalog_pages:complete-flavors"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pools: Any = self.fields["pool"]
        pools.queryset = Pool.objects.filter(deleted_at=None).order_by("slug")

    def service_arguments(self) -> dict[str, Any]:
        document = super().service_arguments()
        pool = document["pool"]
        document["pool"] = pool.slug if pool is not None else None
        return {**document, **models_document(document["accelerator_models"])}


def models_document(models: list[str]) -> dict[str, Any]:
    """Return the models of a flavor's form as the fields of its document."""
    return {
        "accelerator_model": models[0] if len(models) == 1 else "",
        "accelerator_models": models if len(models) > 1 else [],
    }


def initial_values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as the initial values of its form."""
    initial = dict(document)
    initial["audience"] = "all" if initial.get("teams") is None else "teams"
    initial["teams"] = initial.get("teams") or []
    if "accelerator_models" in initial:
        initial["accelerator_models"] = initial["accelerator_models"] or list(
            filter(None, [initial.get("accelerator_model")])
        )
    return initial
