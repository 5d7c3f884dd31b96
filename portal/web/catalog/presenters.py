"""Presenters of the catalog pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Count, QuerySet
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.catalog import policies, selectors
from portal.catalog.environments.models import Environment
from portal.catalog.environments.selectors import environments_for
from portal.catalog.models import Flavor, Template
from portal.common.completion import MAX_OPTIONS, CompletionOptions, truncate_options
from portal.common.formatting import format_cores, format_duration, format_memory, format_money, format_size
from portal.common.history import presenters as kept_versions
from portal.common.history import selectors as history
from portal.common.history.presenters import ChangedField, Version
from portal.common.reasons.wording import message_of, next_action_of
from portal.people.accounts.models import Team, User
from portal.people.accounts.selectors import own_teams
from portal.web.catalog.environments import environment_states, pool_drivers, pools_with_old_drivers
from portal.workspaces.models import Workspace

LABELS: dict[str, str | Promise] = {
    "slug": _("Slug"), "team": _("Team"), "name": _("Name"), "description": _("Description"),
    "icon": _("Icon"), "program": _("Program"), "install_hint": _("If the program is missing"),
    "min_cuda": _("Minimum CUDA version"), "min_compute_capability": _("Minimum compute capability"),
    "argv": _("Command"), "env": _("Environment variables"), "startup": _("Startup script"),
    "environment": _("Environment"),
    "ready_path": _("Readiness path"), "open_path": _("Start path"),
    "upstream_auth": _("App sign-in"), "service_workers": _("Service workers"),
    "git_url": _("Git repository"), "git_ref": _("Branch, tag or commit"), "git_secret": _("Credential"),
    "dotfiles_url": _("Dotfiles"), "mounts": _("Node folders"),
    "egress": _("Network access"), "egress_allow": _("Hosts and networks"),
    "activity": _("Activity"), "start_timeout_s": _("Start timeout"),
    "stop_timeout_s": _("Stop timeout"), "work_lost": _("Work is lost at preemption"),
    "enabled": _("Enabled"), "position": _("Position in the list"),
    "deprecated": _("Deprecated"), "teams": _("Teams"), "successor": _("Successor"), "pool": _("Pool"),
    "cpu_milli": _("CPU"), "memory_mib": _("Memory"),
    "disk_mib": _("Scratch disk"), "nodes": _("Nodes"), "accelerator_count": _("Accelerators"),
    "accelerator_model": _("Model"), "accelerator_models": _("Models"),
    "accelerator_milli": _("Share of each accelerator"), "accelerator_memory_mib": _("Minimum GPU memory"),
    "mig_profile": _("MIG profile"), "within": _("Accelerators must share"), "preemptible": _("Preemptible"),
    "expected_hours": _("Expected run time"), "default_lifetime_hours": _("Stops after"),
    "max_lifetime_hours": _("Maximum lifetime"), "price_cents": _("Price"),
    "driver": _("Driver"), "config": _("Configuration"),
}  # fmt: skip


def format_field(model: type[Template] | type[Flavor], field: str, value: Any) -> str:
    """Return a field's value as text, or a dash if empty."""
    if value in (None, "", [], {}) or (value == 0 and field.endswith("_mib")):
        return "–"
    match value:
        case bool():
            return gettext("Yes") if value else gettext("No")
        case int() if field.endswith("_mib"):
            return format_memory(value)
        case int() if field == "cpu_milli":
            return format_cores(value)
        case int() if field == "accelerator_milli":
            return f"{value / 10:g} %"
        case int() if field == "price_cents":
            money = format_money(value / 100)
            return gettext("%(money)s per hour") % {"money": money}
        case int() if field.endswith("_lifetime_hours"):
            return format_duration(value * 3600) if value else gettext("no end")
        case int() | float() if field == "expected_hours":
            return format_duration(round(value * 3600))
        case int() if field.endswith("_s"):
            return format_duration(value)
        case list() if field == "argv":
            return "\n".join(str(item) for item in value)
        case list():
            return ", ".join(str(item) for item in value)
        case dict():
            return "\n".join(f"{name}={text}" for name, text in value.items())
    fields_by_name = {model_field.name: model_field for model_field in model._meta.get_fields()}
    choices = dict(getattr(fields_by_name.get(field), "flatchoices", ()) or ())
    return str(choices.get(value, value))


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A row of a list of entries. `workspaces` is the number of existing ones, for users who see all."""

    entry: Template | Flavor
    url: str
    size: str
    audience: str | Promise
    blocker: str
    environment: str = ""
    workspaces: int = 0

    @property
    def workspaces_url(self) -> str:
        return workspaces_url(self.entry)


def kind_of(entry: Template | Flavor) -> str:
    """Return the kind of the entry, as in its URLs."""
    return "template" if isinstance(entry, Template) else "flavor"


def url_of(entry: Template | Flavor, name: str = "") -> str:
    """Return the URL of the entry's page, or of an action (`edit`, `delete`)."""
    kind = kind_of(entry)
    return reverse(f"catalog_pages:{name}-{kind}" if name else f"catalog_pages:{kind}", args=[entry.slug])


def workspaces_url(entry: Template | Flavor) -> str:
    """Return the URL of the list of its workspaces. For a template, the list searches for its name."""
    query = {"flavor": entry.slug} if isinstance(entry, Flavor) else {"q": entry.name}
    return f"{reverse('workspace_list:list')}?{urlencode(query)}"


def rows(actor: User, entries: Sequence[Template | Flavor]) -> list[CatalogRow]:
    """Return rows for these entries, with a fixed number of queries."""
    programs = selectors.node_programs().installed
    state_texts = environment_states(candidate for candidate in entries if isinstance(candidate, Template))
    own = None if actor.sees_all else set(own_teams(actor).values_list("pk", flat=True))
    counts = _workspaces_of(entries) if actor.sees_all else {}
    catalog_rows = []
    for entry in entries:
        blocker = selectors.missing_program(entry, programs) if isinstance(entry, Template) else None
        size = format_size(entry.as_request()) if isinstance(entry, Flavor) else entry.description
        text = message_of(blocker) if blocker else ""
        runs = ""
        if isinstance(entry, Template) and entry.environment is not None:
            runs = f"{entry.environment.name} · {state_texts[entry.environment.slug]}"
        count = counts.get(entry.pk, 0)
        catalog_rows.append(CatalogRow(entry, url_of(entry), size, audience(entry, own), text, runs, count))
    return catalog_rows


def _workspaces_of(entries: Sequence[Template | Flavor]) -> dict[UUID, int]:
    """Return the number of existing workspaces by entry. All entries have the same kind."""
    if not entries:
        return {}
    kind = kind_of(entries[0])
    rows = Workspace.objects.live().filter(**{f"{kind}__in": [entry.pk for entry in entries]})
    return dict(rows.order_by().values_list(kind).annotate(Count("pk")))


def audience(entry: Template | Flavor, own: set[Any] | None) -> str | Promise:
    """Return who may use the entry. Names teams outside `own` only if it is `None` (the user sees all)."""
    if isinstance(entry, Template) and entry.team is not None:
        return entry.team.name
    if not entry.restricted:
        return _("Everyone")
    names = sorted(team.name for team in entry.teams.all() if own is None or team.pk in own)
    return ", ".join(names) if names else _("No one")


def teams_to_create_for(actor: User) -> QuerySet[Team]:
    """Return the teams for which the actor may create templates."""
    if actor.operates:
        return Team.objects.order_by("slug")
    return own_teams(actor).filter(memberships__user=actor, memberships__role="owner")


def teams_to_choose(teams: QuerySet[Team]) -> CompletionOptions:
    """Return teams as options of a field."""
    return truncate_options(teams.values_list("slug", "name")[: MAX_OPTIONS + 1])


def bases(actor: User, kind: str) -> CompletionOptions:
    """Return entries that can be copied: those whose full definition the actor may read."""
    rows = selectors.flavors_for(actor) if kind == "flavor" else _readable(actor)
    pairs = rows.order_by("position", "slug").values_list("slug", "name")[: MAX_OPTIONS + 1]
    return truncate_options(
        (slug, gettext("Copy of %(name)s") % {"name": name}) for slug, name in cast(Any, pairs)
    )


def _readable(actor: User) -> Any:
    return policies.templates_with_visible_command(actor, selectors.templates_for(actor).filter(enabled=True))


def first_matching_template(actor: User, environment: Environment) -> str:
    """Return the slug of the first template whose program the environment has, or an empty string."""
    programs = environment.current.programs if environment.current is not None else []
    templates = _readable(actor).filter(team=None, program__in=programs).order_by("position", "slug")
    return str(templates.values_list("slug", flat=True).first() or "")


def versions(actor: User, entry: Template | Flavor) -> list[Version]:
    """Return the latest versions with their changes; empty if the actor may not see the command."""
    if not (actor.sees_all or policies.may_manage(actor, entry)):
        return []
    kind, keeps = kind_of(entry), policies.may_manage(actor, entry)
    revisions = kept_versions.newest(*selectors.revision_subject(entry))
    names = _environment_names(change for _, changes in revisions for change in changes)
    return [
        Version(
            row,
            tuple(_change_text(type(entry), change, names) for change in changes),
            reverse(f"catalog_pages:restore-{kind}", args=[entry.slug, row.number])
            if keeps and place
            else "",
        )
        for place, (row, changes) in enumerate(revisions)
    ]


def format_differences(
    model: type[Template] | type[Flavor], differences: Sequence[history.Difference]
) -> list[ChangedField]:
    """Return the differences between two documents as text, with environment names."""
    names = _environment_names(differences)
    return [_change_text(model, difference, names) for difference in differences]


def _change_text(
    model: type[Template] | type[Flavor], difference: history.Difference, names: Mapping[str, str]
) -> ChangedField:
    field, before, after = difference.field, difference.before, difference.after
    if field == "environment":
        before, after = (names.get(slug, slug) for slug in (before, after))
    return ChangedField(
        LABELS.get(field, field), format_field(model, field, before), format_field(model, field, after)
    )


def _environment_names(differences: Iterable[history.Difference]) -> dict[str, str]:
    """Return the names of environments in the differences, by slug."""
    slugs = {
        slug
        for difference in differences
        if difference.field == "environment"
        for slug in (difference.before, difference.after)
    }
    named_slugs = [slug for slug in slugs if slug]
    return (
        dict(Environment.objects.filter(slug__in=named_slugs).values_list("slug", "name"))
        if named_slugs
        else {}
    )


@dataclass(frozen=True, slots=True)
class TemplateEnvironment:
    """The environment of a template: its state, and pools whose drivers are too old. `url` is its page."""

    name: str
    state_text: str
    drivers: str
    url: str


def template_environment(actor: User, template: Template) -> TemplateEnvironment | None:
    """Return the environment of a template for its page, or `None` for the software of the nodes."""
    environment = template.environment
    if environment is None:
        return None
    is_visible = environment.team_id is None or environments_for(actor).filter(pk=environment.pk).exists()
    return TemplateEnvironment(
        environment.name,
        environment_states([template])[environment.slug],
        pools_with_old_drivers(environment, pool_drivers()),
        reverse("environments:detail", args=[environment.slug]) if is_visible else "",
    )


def notes(entry: Template | Flavor) -> list[str]:
    """Return warnings for users who choose the entry."""
    reason = selectors.deprecation_of(entry)
    return [f"{message_of(reason)} {next_action_of(reason)}"] if reason is not None else []
