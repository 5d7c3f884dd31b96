"""Sections of the forms of templates and flavors: some fields are visible, others are summarised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.catalog import documents
from portal.catalog.models import Flavor, Template
from portal.common.form_sections import summary_of
from portal.web.catalog import presenters
from portal.web.catalog.forms import EntryForm, TemplateForm, initial_values

MAX_TEXT = 24


@dataclass(frozen=True, slots=True)
class SectionLayout:
    """The name and the fields of a section."""

    key: str
    title: str | Promise
    fields: tuple[str, ...]


LIFETIME = ("default_lifetime_hours", "max_lifetime_hours")
LISTING = ("position", "audience", "teams", "enabled", "deprecated", "successor")
TEMPLATE_BASICS = ("name", "slug", "description", "program", "argv")
TEMPLATE_SECTIONS = (
    SectionLayout(
        "software",
        _("Software"),
        ("environment", "startup", "env", "min_cuda", "min_compute_capability", "install_hint"),
    ),
    SectionLayout(
        "app",
        _("App"),
        (
            "ready_path", "open_path", "upstream_auth", "activity", "start_timeout_s", "stop_timeout_s",
            "service_workers",
        ),
    ),
    SectionLayout(
        "code", _("Code and data"), ("git_url", "git_ref", "git_secret", "dotfiles_url", "mounts")
    ),
    SectionLayout("network", _("Network"), ("egress", "egress_allow")),
    SectionLayout("lifetime", _("Lifetime"), (*LIFETIME, "work_lost")),
    SectionLayout("list", _("List and access"), ("icon", *LISTING)),
)  # fmt: skip
FLAVOR_BASICS = ("name", "slug", "cpu_milli", "memory_mib", "accelerator_count")
FLAVOR_SECTIONS = (
    SectionLayout(
        "accelerators",
        _("Accelerators"),
        ("accelerator_models", "accelerator_memory_mib", "accelerator_milli", "mig_profile", "within"),
    ),
    SectionLayout("place", _("Disk, nodes and pool"), ("disk_mib", "nodes", "pool")),
    SectionLayout("price", _("Price and time"), ("price_cents", "expected_hours", *LIFETIME)),
    SectionLayout("preemption", _("Preemption"), ("preemptible", "work_lost")),
    SectionLayout("list", _("List and access"), ("description", *LISTING)),
)


@dataclass(frozen=True, slots=True)
class FormSection:
    """A section of a form. `summary` describes its values; `open` is True if it has an error."""

    key: str
    title: str | Promise
    fields: list[forms.BoundField]
    summary: str
    open: bool


def basics_of(form: EntryForm) -> list[forms.BoundField]:
    """Return the fields that are always visible."""
    names = TEMPLATE_BASICS if isinstance(form, TemplateForm) else FLAVOR_BASICS
    return [form[name] for name in names if name in form.fields]


def sections_of(form: EntryForm) -> list[FormSection]:
    """Return the sections with all other fields of the form."""
    layouts = TEMPLATE_SECTIONS if isinstance(form, TemplateForm) else FLAVOR_SECTIONS
    defaults, values = (
        initial_values(new_document("template" if isinstance(form, TemplateForm) else "flavor")),
        current_values(form),
    )
    sections = []
    for layout in layouts:
        names = [name for name in layout.fields if name in form.fields]
        changes = list(_changes(form, names, values, defaults))
        is_open = any(name in form.errors for name in names)
        fields = [form[name] for name in names]
        sections.append(FormSection(layout.key, layout.title, fields, summary_of(changes), is_open))
    return sections


def focus_first_error(form: EntryForm) -> None:
    """Let the browser focus the first field with an error, in the order of the page."""
    shown = [*basics_of(form), *(field for section in sections_of(form) for field in section.fields)]
    first = next((field for field in shown if field.errors), None)
    if first is not None:
        form.fields[first.name].widget.attrs["autofocus"] = True


def new_document(kind: str) -> dict[str, Any]:
    """Return the document of a new template or flavor with common values."""
    if kind == "template":
        return documents.document_of_new(Template(argv=[], env={}))
    return documents.document_of_new(Flavor(cpu_milli=1000, memory_mib=2048))


def current_values(form: EntryForm) -> dict[str, Any]:
    """Return the valid values of a submitted form, else its initial values. Pools are slugs."""
    values = form.cleaned_data if form.is_bound and form.errors is not None else form.initial
    return {name: getattr(value, "slug", value) for name, value in values.items()}


def _changes(
    form: EntryForm, names: list[str], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the fields with other values than a new entry has, and their values if short."""
    for name in names:
        label = str(form.fields[name].label)
        if name not in values:
            yield label
        elif (values[name] or None) != (defaults.get(name) or None) or _is_zero(values[name], defaults, name):
            text = _text(form, name, values[name])
            is_short = len(text) <= MAX_TEXT and "\n" not in text
            yield f"{label} {text}" if is_short and values[name] is not True else label


def _is_zero(value: Any, defaults: Mapping[str, Any], name: str) -> bool:
    """Return whether a number is 0 and a new entry has none: 0 hours mean no limit, none the default."""
    return value == 0 and value is not False and defaults.get(name) is None


def _text(form: EntryForm, name: str, value: Any) -> str:
    field = form.fields[name]
    if type(field) is forms.ChoiceField:
        return str(dict(field.choices).get(value, value))  # type: ignore[arg-type]
    model = Template if isinstance(form, TemplateForm) else Flavor
    return presenters.format_field(model, name, value)
