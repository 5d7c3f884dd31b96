"""The environment field of the form of a new workspace, with a note about the chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.utils.translation import gettext as _

from portal.catalog.environments import selectors as environments
from portal.catalog.environments.codes import EnvironmentCode
from portal.catalog.environments.models import Environment, Kind, VersionState
from portal.catalog.models import Template
from portal.common.completion import MAX_OPTIONS
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, sentence_of
from portal.people.accounts.models import Team, User
from portal.workspaces import software


@dataclass(frozen=True, slots=True)
class EnvironmentOption:
    """An environment to choose; `taken` is the name of the environment that a start then uses.

    `reason` explains why the environment is not available now.
    """

    slug: str
    label: str
    chosen: bool
    taken: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EnvironmentField:
    """The state of the field. `software` is the software that the workspace would use.

    `many` means that there are more environments than fit into a list.
    """

    software: software.Software
    options: list[EnvironmentOption]
    note: str
    many: bool


def environment_field(
    actor: User, template: Template, team: Team | None, slug: str, on_nodes: str
) -> EnvironmentField:
    """Return the field with environment `slug` chosen, or the template's own if empty or unusable.

    `on_nodes` names the software of the nodes.
    """
    rows, has_more = _choosable(actor, team, slug)
    coming = environments.pending_versions(rows)
    refusals = {row.pk: software.refusal_of(template, team, row, coming.get(row.pk)) for row in rows}
    requested = next((row for row in rows if row.slug == slug), None)
    chosen = requested if requested is not None and refusals[requested.pk] is None else None
    default = software.default_of(template, team)
    own = default_name(default, on_nodes)
    runs_in = software.choose_software(template, team, chosen) if chosen is not None else default
    problem = _problem(slug, requested, refusals) if has_more else None
    return EnvironmentField(
        software=runs_in,
        options=[
            EnvironmentOption("", _("As the template: %(name)s") % {"name": own}, chosen is None, own),
            *(_option(row, refusals[row.pk], chosen=row is chosen) for row in rows),
        ],
        note=sentence_of(problem) if problem is not None else _note(template, team, chosen, runs_in),
        many=has_more,
    )


def _choosable(actor: User, team: Team | None, slug: str) -> tuple[list[Environment], bool]:
    """Return the listed environments, including the one named `slug`, and whether there are more."""
    usable = environments.usable_by(actor, team).defer("current__packages")
    rows = list(usable[: MAX_OPTIONS + 1])
    has_more = len(rows) > MAX_OPTIONS
    if slug and has_more and all(row.slug != slug for row in rows):
        rows += usable.filter(slug=slug)
    return rows, has_more


def _problem(
    slug: str, requested: Environment | None, refusals: Mapping[UUID, Reason | None]
) -> Reason | None:
    """Return why the entered slug cannot be used, or None. A list does not offer such environments."""
    if requested is not None:
        return refusals[requested.pk]
    return Reason(EnvironmentCode.NO_SUCH_ENVIRONMENT) if slug else None


def _option(environment: Environment, refusal: Reason | None, *, chosen: bool) -> EnvironmentOption:
    label = environment.name
    if refusal is None and environment.kind == Kind.BUILT and environment.current is None:
        label = _("%(name)s (is installed first)") % {"name": environment.name}
    reason = message_of(refusal) if refusal is not None else ""
    return EnvironmentOption(environment.slug, label, chosen, environment.name, reason)


def node_software_name(actor: User, team: Team | None) -> str:
    """Return the name with which the field shows the nodes' software."""
    row = environments.usable_by(actor, team).filter(kind=Kind.NODE).last()
    return row.name if row is not None else _("software of the node")


def default_name(default: software.Software, on_nodes: str) -> str:
    """Return the name of the software that a start uses by default."""
    return default.environment.name if default.environment is not None else on_nodes


def _note(
    template: Template, team: Team | None, chosen: Environment | None, runs_in: software.Software
) -> str:
    """Return a note about the environment that the workspace would use, or an empty string."""
    if runs_in.waits and runs_in.environment is not None:
        text = _("“%(name)s” is installed first. Your workspace then starts automatically.")
        return text % {"name": runs_in.environment.name}
    if chosen is not None:
        deprecation = software.deprecation_of(chosen)
        return sentence_of(deprecation) if deprecation is not None else ""
    own = template.environment
    refusal = software.refusal_of(template, team, own) if own is not None else None
    # Operators handle failed builds; workspaces get another environment meanwhile.
    if refusal is None or refusal.params.get("state") != VersionState.BUILDING:
        return ""
    return message_of(refusal)
