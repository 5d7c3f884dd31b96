"""Queries for the catalog: entries visible to an actor, and usable by a team."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Q, QuerySet

from portal.catalog import documents, policies
from portal.catalog.codes import CatalogCode
from portal.catalog.environments.policies import built_when_asked
from portal.catalog.environments.selectors import expected_programs, newest_version
from portal.catalog.models import Flavor, Template
from portal.catalog.rules import Finding
from portal.common.errors import InvalidInput, NotFound
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import message_of, next_action_of
from portal.common.texts import strip_nul
from portal.fleet.inventory.models import Node
from portal.fleet.inventory.offered_pools import OfferedPools
from portal.people.accounts.models import Team, User

E = TypeVar("E", Template, Flavor)
MAX_KNOWN_SHOWN = 20


def _with_relations(rows: QuerySet[E]) -> QuerySet[E]:
    """Join the relations that documents and responses need, with a constant number of queries."""
    related = (
        ("team", "successor", "environment__current") if rows.model is Template else ("pool", "successor")
    )
    queryset = rows.select_related(*related).prefetch_related("teams")
    if rows.model is Template:
        # Only the name and programs of the environment's version are needed.
        queryset = queryset.defer(
            *(f"environment__current__{name}" for name in ("source", "lock", "packages"))
        )
    return queryset


def templates_for(actor: User) -> QuerySet[Template]:
    """Return templates visible to the actor, enabled or not."""
    return _with_relations(policies.visible_to(actor, Template.objects.all()))


def flavors_for(actor: User) -> QuerySet[Flavor]:
    """Return flavors visible to the actor, enabled or not."""
    return _with_relations(policies.visible_to(actor, Flavor.objects.all()))


class OffersByFlavor:
    """See `PoolOffers`."""

    def to_user(self, actor: User) -> OfferedPools:
        """See `PoolOffers.to_user`."""
        flavors = policies.visible_to(actor, Flavor.objects.filter(enabled=True))
        keys = set(flavors.order_by().values_list("pool_id", flat=True).distinct())
        return OfferedPools(frozenset(key for key in keys if key is not None), None in keys)


def templates_of(team: Team) -> QuerySet[Template]:
    """Return templates offered to a team."""
    return _with_relations(policies.entries_offered_to(team, Template.objects.all()))


def flavors_of(team: Team) -> QuerySet[Flavor]:
    """Return flavors offered to a team."""
    return _with_relations(policies.entries_offered_to(team, Flavor.objects.all()))


def all_templates() -> QuerySet[Template]:
    """Return all templates that are not deleted, for the portal's own use."""
    return _with_relations(Template.objects.filter(deleted_at=None))


def all_flavors() -> QuerySet[Flavor]:
    """Return all flavors that are not deleted, for the portal's own use."""
    return _with_relations(Flavor.objects.filter(deleted_at=None))


def search(rows: QuerySet[E], query: str) -> QuerySet[E]:
    """Return the entries with every word in name, slug or description (or model, or program)."""
    more = "program" if rows.model is Template else "accelerator_model"
    for term in strip_nul(query).split()[:10]:
        rows = rows.filter(
            Q(name__icontains=term)
            | Q(slug__icontains=term)
            | Q(description__icontains=term)
            | Q(**{f"{more}__icontains": term})
        )
    return rows


def visible_template(actor: User, slug: str) -> Template:
    """Return a visible template. Raises `NotFound`, also for invisible ones."""
    template = templates_for(actor).filter(slug=strip_nul(slug)).first()
    if template is None:
        raise NotFound(_no_such_template(actor, slug))
    return template


def visible_flavor(actor: User, slug: str) -> Flavor:
    """Return a visible flavor. Raises `NotFound`, also for invisible ones."""
    flavor = flavors_for(actor).filter(slug=strip_nul(slug)).first()
    if flavor is None:
        raise NotFound(_no_such_flavor(actor, slug))
    return flavor


def template_by_slug(actor: User, slug: str) -> Template:
    """Return an enabled template named in a request. Raises `InvalidInput`."""
    template = templates_for(actor).filter(slug=strip_nul(slug), enabled=True).first()
    if template is None:
        reason = _no_such_template(actor, slug)
        raise InvalidInput(reason, errors={"template": [_choose(reason)]})
    return template


def flavor_by_slug(actor: User, slug: str) -> Flavor:
    """Return an enabled flavor named in a request. Raises `InvalidInput`."""
    flavor = flavors_for(actor).filter(slug=strip_nul(slug), enabled=True).first()
    if flavor is None:
        reason = _no_such_flavor(actor, slug)
        raise InvalidInput(reason, errors={"flavor": [_choose(reason)]})
    return flavor


def _no_such_template(actor: User, slug: str) -> Reason:
    rows = templates_for(actor).filter(enabled=True)
    slugs = list(rows.values_list("slug", flat=True)[:MAX_KNOWN_SHOWN])
    return Reason(CatalogCode.NO_SUCH_TEMPLATE, {"slug": slug, "known": slugs})


def _no_such_flavor(actor: User, slug: str) -> Reason:
    rows = flavors_for(actor).filter(enabled=True)
    slugs = list(rows.values_list("slug", flat=True)[:MAX_KNOWN_SHOWN])
    return Reason(CatalogCode.NO_SUCH_FLAVOR, {"slug": slug, "known": slugs})


def _choose(reason: Reason) -> Reason:
    return Reason(CommonCode.CHOOSE_ONE_OF, {"known": reason.params["known"]})


def template_at(template: Template, moment: datetime | None) -> Template:
    """Return the template as of `moment`, unsaved, so that changes do not affect running workspaces.

    Returns the current one if it has not changed since, or if there is no history.
    """
    if moment is None or template.updated_at <= moment:
        return template
    data = history.document_at(SubjectKind.TEMPLATE, template.pk, moment)
    if data is None:
        return template
    fields: dict[str, Any] = {name: data[name] for name in documents.TEMPLATE_FIELDS if name in data}
    return Template(pk=template.pk, slug=template.slug, team_id=template.team_id, **fields)


def deprecation_of(entry: Template | Flavor) -> Reason | None:
    """Return the deprecation and its successor as a reason; None if the entry is not deprecated."""
    if not entry.deprecated:
        return None
    if entry.successor is None:
        return Reason(CatalogCode.ENTRY_DEPRECATED, {"name": entry.name})
    params = {"name": entry.name, "successor": entry.successor.name}
    return Reason(CatalogCode.ENTRY_HAS_SUCCESSOR, params)


def deprecations(*entries: Template | Flavor) -> list[Finding]:
    """Return the deprecated entries as findings on `template` and `flavor`."""
    return [
        Finding("template" if isinstance(entry, Template) else "flavor", reason)
        for entry in entries
        if (reason := deprecation_of(entry)) is not None
    ]


@dataclass(frozen=True, slots=True)
class TemplateOffer:
    """A template card. `blocker` is why the template is unavailable, or None."""

    template: Template
    blocker: Reason | None = None

    @property
    def reason(self) -> str:
        """Why the template is unavailable, as a sentence, or an empty string."""
        return message_of(self.blocker) if self.blocker else ""

    @property
    def next_action(self) -> str:
        """The next action, or an empty string."""
        return next_action_of(self.blocker) if self.blocker else ""


def template_offers(
    templates: Iterable[Template], programs: NodePrograms | None = None
) -> list[TemplateOffer]:
    """Return the offers; a template whose program no node has gets a reason."""
    installed = (programs or node_programs()).installed
    return [TemplateOffer(template, missing_program(template, installed)) for template in templates]


@dataclass(frozen=True, slots=True)
class NodePrograms:
    """The programs of each real node: path by name, empty if the node lacks the program."""

    nodes: Sequence[Mapping[str, str]]

    @property
    def installed(self) -> frozenset[str] | None:
        """The programs of all nodes together; None without nodes."""
        if not self.nodes:
            return None
        return frozenset(name for programs in self.nodes for name, path in programs.items() if path)

    def lack(self, name: str) -> bool:
        """Return whether every node reports that it lacks this program. A missing report means unknown."""
        return bool(self.nodes) and all(programs.get(name) == "" for programs in self.nodes)


def node_programs() -> NodePrograms:
    """Return the programs of all real nodes. One query."""
    nodes = Node.objects.filter(pool__simulated=False, pool__enabled=True, retired=False)
    return NodePrograms(list(nodes.values_list("programs", flat=True)))


def missing_program(template: Template, programs: frozenset[str] | None) -> Reason | None:
    """Return a reason if neither a node nor the environment has the template's program, or None.

    Simulated nodes have every program.
    """
    if programs is None or template.program in programs:
        return None
    environment = template.environment
    version = environment.current if environment is not None else None
    if environment is not None and built_when_asked(environment):
        version = newest_version(environment)
    if version is not None and template.program in expected_programs(version):
        return None
    params = {"program": template.program, "install_hint": template.install_hint}
    return Reason(CatalogCode.TEMPLATE_UNAVAILABLE, params)


def revision_subject(entry: Template | Flavor) -> tuple[SubjectKind, UUID]:
    """Return the kind and key of the entry in the history."""
    kind = SubjectKind.TEMPLATE if isinstance(entry, Template) else SubjectKind.FLAVOR
    return kind, entry.pk
