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
from portal.common.completion import LONGEST_SLUG, CompletedInput, let_choose, offered
from portal.common.json_input import InvalidJson, parse_json
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
                    _("Write “NAME=value” on each line: “%(line)s” has no “=”."), params={"line": line[:60]}
                )
            variables[name.strip()] = content
        return variables


class Names(forms.CharField):
    """Slugs or models, separated by commas or lines."""

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        return [name.strip() for name in text.replace("\n", ",").split(",") if name.strip()]


class Amount(forms.DecimalField):
    """An amount for people, stored in a unit smaller by `factor`, such as cents, MiB or seconds."""

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
        raise ValidationError(
            _("This is no JSON that can be read: %(why)s."), params={"why": str(error)}
        ) from error


def _integer(
    label: Any, least: int, most: int, hint: Any = "", *, required: bool = True
) -> forms.IntegerField:
    field = forms.IntegerField(
        label=label, min_value=least, max_value=most, help_text=hint, required=required
    )
    field.widget = forms.TextInput(attrs={"inputmode": "numeric", **PLAIN})
    return field


def _text(label: Any, most: int, hint: Any = "", *, required: bool = False) -> forms.CharField:
    return forms.CharField(
        label=label, max_length=most, required=required, help_text=hint, widget=forms.TextInput(attrs=PLAIN)
    )


class EntryForm(forms.Form):
    """Common fields of templates and flavors."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)
    slug = _text(_("Short name"), 60, _("Lower-case letters, digits and hyphens. It stays."), required=True)
    name = _text(_("Name"), 80, required=True)
    description = _text(_("What it is for"), 200, _("One sentence, for those who choose."))
    position = _integer(_("Place in the list"), 0, LARGEST, _("Smaller numbers come first."))
    enabled = forms.BooleanField(label=_("Offered"), required=False)
    deprecated = forms.BooleanField(label=_("Deprecated"), required=False)
    successor = _text(_("Successor"), 81, _("Short name of what takes its place, if it is deprecated."))
    audience = forms.ChoiceField(
        label=_("Who may use it"),
        choices=[("all", _("Everybody")), ("teams", _("Only these teams"))],
        widget=forms.RadioSelect,
    )
    teams = Names(
        label=_("Teams"),
        required=False,
        help_text=_("Short names, with commas between them."),
        widget=forms.TextInput(attrs=PLAIN),
    )
    default_lifetime_hours = _integer(
        _("Hours until it stops"),
        0,
        MAX_LIFETIME_H,
        _(
            "Where its user asks for nothing. 0: it has no end. Of template and flavor the shorter holds; "
            "empty in both: as the site says."
        ),
        required=False,
    )
    max_lifetime_hours = _integer(
        _("Most hours"),
        0,
        MAX_LIFETIME_H,
        _(
            "Extensions included. 0: any. Of template and flavor the shorter holds; "
            "empty in both: as the site says."
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

    def given(self) -> dict[str, Any]:
        """Return the arguments for services, with the field names of REST."""
        document = {name: value for name, value in self.cleaned_data.items() if name != "version"}
        audience = document.pop("audience", None)
        if audience is not None:
            document["teams"] = document["teams"] if audience == "teams" else None
        document["successor"] = document.get("successor") or None
        return document


class TemplateForm(EntryForm):
    """A template. `own` omits the fields that only templates of the site have."""

    program = _text(_("Program"), 80, _("What a node must have, such as jupyter-lab or bash."), required=True)
    argv = Arguments(
        label=_("Command"),
        max_length=100_000,
        help_text=_(
            "One argument on each line. {port}, {home}, {token}, {token_file} and {name} are replaced."
        ),
        widget=forms.Textarea(attrs=CODE),
    )
    startup = forms.CharField(
        label=_("Startup script"),
        max_length=8000,
        required=False,
        strip=False,
        help_text=_("Shell commands that run first, in the same sandbox. If they fail, so does the start."),
        widget=forms.Textarea(attrs={**CODE, "rows": "4"}),
    )
    env = Variables(
        label=_("Environment variables"),
        max_length=100_000,
        required=False,
        help_text=_("NAME=value on each line. Everybody who may use it can read them: no secrets."),
        widget=forms.Textarea(attrs={**CODE, "rows": "4"}),
    )
    icon = forms.ChoiceField(
        label=_("Icon"), required=False, choices=[("", _("None")), *((icon, icon) for icon in rules.ICONS)]
    )
    ready_path = _text(_("Path that answers when it is ready"), 200, required=True)
    open_path = _text(_("Path that opens"), 200, required=True)
    upstream_auth = forms.ChoiceField(
        label=_("Signing in to the app"),
        choices=UpstreamAuth.choices,
        help_text=_("How the gateway shows the app its token."),
    )
    egress = forms.ChoiceField(
        label=_("What it may reach"),
        required=False,
        choices=TemplateEgress.choices,
        help_text=_("Never more than its pool and node allow."),
    )
    egress_allow = forms.CharField(
        label=_("Hosts and networks"),
        max_length=4000,
        required=False,
        help_text=_(
            "With “Only what is listed”: packages.example, *.example.org, git.example.org:22, 10.1.0.0/16."
        ),
        widget=forms.Textarea(attrs={**CODE, "rows": "2"}),
    )
    git_url = _text(
        _("Git repository"), 500, _("Its workspaces clone it at their start, unless they name another.")
    )
    git_ref = _text(_("Branch, tag or commit"), 200, _("Empty: the repository's own branch."))
    git_secret = _text(
        _("Credential"), 64, _("Name of the template's or the team's secret that opens the repository.")
    )
    dotfiles_url = _text(_("Dotfiles"), 500, _("A Git repository, for users who have none of their own."))
    mounts = Names(
        label=_("Folders of the node"),
        required=False,
        max_length=400,
        help_text=_(
            "Names that nodes list in BERTH_MOUNTS, with commas between; NAME:rw to write there. "
            "Workspaces find them as /data/NAME."
        ),
        widget=forms.TextInput(attrs=PLAIN),
    )
    environment = forms.ChoiceField(
        label=_("Environment"),
        required=False,
        help_text=_("The software that its workspaces get unless they name another."),
    )
    activity = forms.ChoiceField(label=_("Activity"), required=False, choices=Activity.choices)
    min_cuda = _text(_("Least CUDA version"), 6, _("Such as 12.4, for accelerators."))
    min_compute_capability = forms.ChoiceField(
        label=_("Least compute capability"),
        required=False,
        choices=[("", _("Any")), *((capability, capability) for capability in COMPUTE_CAPABILITIES)],
    )
    work_lost = forms.ChoiceField(
        label=_("When it has to make room, its work is lost"), choices=WorkLost.choices
    )
    start_timeout_s = _integer(_("Seconds to start"), 5, MAX_TIMEOUT_S)
    stop_timeout_s = _integer(_("Seconds to stop"), 0, 300)
    install_hint = _text(_("Where the program is missing"), 200, _("What an operator does then."))
    service_workers = forms.BooleanField(
        label=_("Its pages may install service workers"),
        required=False,
        help_text=_("They outlive the page and a restart: only for apps that need them."),
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
        let_choose(
            self,
            "environment",
            offered((environment.environment.slug, environment.label) for environment in environments),
            url=f"{reverse('catalog_pages:complete-environments')}?{urlencode({'team': team})}",
            none=_("What each node has by itself"),
        )
        folder_hint = _("Nodes show %(folders)s.") % {"folders": ", ".join(folders)}
        self.fields["mounts"].help_text = f"{self.fields['mounts'].help_text} " + (
            folder_hint if folders else _("No node shows any yet.")
        )
        if own:
            for name in self.SITE:
                del self.fields[name]

    def clean_startup(self) -> str:
        """Convert browsers' line ends, as a shell would read a carriage return as part of the last word."""
        return str(self.cleaned_data["startup"]).replace("\r\n", "\n").replace("\r", "\n")

    def given(self) -> dict[str, Any]:
        document = super().given()
        return {**document, "environment": document["environment"] or None}


class FlavorForm(EntryForm):
    """A flavor, in units for people."""

    cpu_milli = Amount(label=_("CPU cores"), factor=MILLI, min_value=Decimal("0.1"))
    memory_mib = Amount(label=_("Memory in GiB"), factor=MIB_PER_GIB, min_value=Decimal("0.125"))
    disk_mib = Amount(label=_("Scratch disk in GiB"), factor=MIB_PER_GIB, min_value=0)
    nodes = _integer(_("Nodes"), 1, MAX_NODES)
    accelerator_count = _integer(_("Accelerators on each"), 0, MAX_ACCELERATORS)
    accelerator_models = Names(
        label=_("Models"),
        required=False,
        max_length=2000,
        help_text=_("Any of these, as the map of GPUs names them, with commas between. Empty: any model."),
        widget=forms.TextInput(attrs=PLAIN),
    )
    accelerator_memory_mib = Amount(
        label=_("Least GPU memory in GiB"), factor=MIB_PER_GIB, min_value=0, help_text=_("0 is any.")
    )
    accelerator_milli = Amount(
        label=_("Share of each in %"),
        factor=10,
        min_value=Decimal("0.1"),
        max_value=100,
        help_text=_("100 is a whole one."),
    )
    mig_profile = _text(_("MIG profile"), 40, _("Such as 1g.10gb, for MIG instances."))
    within = forms.ChoiceField(label=_("Several must share"), choices=Bond.choices)
    expected_hours = Hours(
        label=_("Hours it is expected to run"),
        min_value=Decimal("0.017"),
        max_value=MAX_EXPECTED_HOURS,
        help_text=_("For estimates."),
    )
    price_cents = Amount(
        label=_("Price of an hour"),
        factor=CENTS,
        required=False,
        min_value=0,
        max_value=Decimal(MAX_PRICE_CENTS) / CENTS,
        help_text=_("With its accelerators, in the site's currency. Empty: no price."),
    )
    pool = forms.ModelChoiceField(
        label=_("Only in the pool"),
        queryset=Pool.objects.none(),
        to_field_name="slug",
        required=False,
        empty_label=_("Every real pool"),
    )
    work_lost = forms.ChoiceField(
        label=_("When it has to make room, its work is lost"),
        required=False,
        choices=[("", _("As the template says")), *WorkLost.choices],
    )
    preemptible = forms.BooleanField(label=_("Others may take its place, with notice"), required=False)
    COMPLETED = "catalog_pages:complete-flavors"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pools: Any = self.fields["pool"]
        pools.queryset = Pool.objects.filter(deleted_at=None).order_by("slug")

    def given(self) -> dict[str, Any]:
        document = super().given()
        pool = document["pool"]
        document["pool"] = pool.slug if pool is not None else None
        models = document["accelerator_models"]
        document["accelerator_model"] = models[0] if len(models) == 1 else ""
        document["accelerator_models"] = models if len(models) > 1 else []
        return document


def initial_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as the initial values of its form."""
    initial = dict(document)
    initial["audience"] = "all" if initial.get("teams") is None else "teams"
    initial["teams"] = initial.get("teams") or []
    if "accelerator_models" in initial:
        initial["accelerator_models"] = initial["accelerator_models"] or list(
            filter(None, [initial.get("accelerator_model")])
        )
    return initial
