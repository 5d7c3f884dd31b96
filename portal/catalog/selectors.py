"""Reads of the catalog: what somebody sees, and what a team may use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Q, QuerySet

from portal.catalog import documents, policies
from portal.catalog.codes import CatalogCode
from portal.catalog.environments.policies import built_when_asked
from portal.catalog.environments.selectors import newest_version, programs_to_come
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
from portal.people.accounts.models import Team, User

E = TypeVar("E", Template, Flavor)
KNOWN_SHOWN = 20


def _whole(rows: QuerySet[E]) -> QuerySet[E]:
    """With all that a document and an answer read, in a fixed number of queries."""
    beside = (
        ("team", "successor", "environment__current") if rows.model is Template else ("pool", "successor")
    )
    found = rows.select_related(*beside).prefetch_related("teams")
    if rows.model is Template:
        # The environment's version is read for what it is called and brings, not for what it was made of.
        found = found.defer(*(f"environment__current__{name}" for name in ("source", "lock", "packages")))
    return found


def templates_for(actor: User) -> QuerySet[Template]:
    """Those that the actor sees, switched off or not."""
    return _whole(policies.visible_to(actor, Template.objects.all()))


def flavors_for(actor: User) -> QuerySet[Flavor]:
    """Those that the actor sees, switched off or not."""
    return _whole(policies.visible_to(actor, Flavor.objects.all()))


def templates_of(team: Team) -> QuerySet[Template]:
    """Those that are offered to a team."""
    return _whole(policies.offered_to(team, Template.objects.all()))


def flavors_of(team: Team) -> QuerySet[Flavor]:
    """Those that are offered to a team."""
    return _whole(policies.offered_to(team, Flavor.objects.all()))


def all_templates() -> QuerySet[Template]:
    """All that have not been deleted; for what the portal does by itself."""
    return _whole(Template.objects.filter(deleted_at=None))


def all_flavors() -> QuerySet[Flavor]:
    """All that have not been deleted; for what the portal does by itself."""
    return _whole(Flavor.objects.filter(deleted_at=None))


def search(rows: QuerySet[E], words: str) -> QuerySet[E]:
    """Those that have each of the words in name, slug or description (or model, or program)."""
    more = "program" if rows.model is Template else "accelerator_model"
    for word in strip_nul(words).split()[:10]:
        rows = rows.filter(
            Q(name__icontains=word)
            | Q(slug__icontains=word)
            | Q(description__icontains=word)
            | Q(**{f"{more}__icontains": word})
        )
    return rows


def template_seen(actor: User, slug: str) -> Template:
    """One that the actor sees. Raises `NotFound`, the same for one that there is not."""
    found = templates_for(actor).filter(slug=strip_nul(slug)).first()
    if found is None:
        raise NotFound(_no_such_template(actor, slug))
    return found


def flavor_seen(actor: User, slug: str) -> Flavor:
    """One that the actor sees. Raises `NotFound`, the same for one that there is not."""
    found = flavors_for(actor).filter(slug=strip_nul(slug)).first()
    if found is None:
        raise NotFound(_no_such_flavor(actor, slug))
    return found


def template_by_slug(actor: User, slug: str) -> Template:
    """One that the actor may choose, for a request that names it. Raises `InvalidInput`."""
    found = templates_for(actor).filter(slug=strip_nul(slug), enabled=True).first()
    if found is None:
        reason = _no_such_template(actor, slug)
        raise InvalidInput(reason, errors={"template": [_choose(reason)]})
    return found


def flavor_by_slug(actor: User, slug: str) -> Flavor:
    """One that the actor may choose, for a request that names it. Raises `InvalidInput`."""
    found = flavors_for(actor).filter(slug=strip_nul(slug), enabled=True).first()
    if found is None:
        reason = _no_such_flavor(actor, slug)
        raise InvalidInput(reason, errors={"flavor": [_choose(reason)]})
    return found


def _no_such_template(actor: User, slug: str) -> Reason:
    rows = templates_for(actor).filter(enabled=True)
    known = list(rows.values_list("slug", flat=True)[:KNOWN_SHOWN])
    return Reason(CatalogCode.NO_SUCH_TEMPLATE, {"slug": slug, "known": known})


def _no_such_flavor(actor: User, slug: str) -> Reason:
    rows = flavors_for(actor).filter(enabled=True)
    known = list(rows.values_list("slug", flat=True)[:KNOWN_SHOWN])
    return Reason(CatalogCode.NO_SUCH_FLAVOR, {"slug": slug, "known": known})


def _choose(reason: Reason) -> Reason:
    return Reason(CommonCode.CHOOSE_ONE_OF, {"known": reason.params["known"]})


def as_of(template: Template, moment: datetime | None) -> Template:
    """The template as it stood then, so that a change does not reach what has been started; not to be saved.

    As it is now where it has not changed since, or where nothing is kept of then.
    """
    if moment is None or template.updated_at <= moment:
        return template
    data = history.as_of(SubjectKind.TEMPLATE, template.pk, moment)
    if data is None:
        return template
    fields: dict[str, Any] = {name: data[name] for name in documents.TEMPLATE_FIELDS if name in data}
    return Template(pk=template.pk, slug=template.slug, team_id=template.team_id, **fields)


def deprecation_of(entry: Template | Flavor) -> Reason | None:
    """That it is deprecated, and what takes its place; None where it is not."""
    if not entry.deprecated:
        return None
    if entry.successor is None:
        return Reason(CatalogCode.ENTRY_DEPRECATED, {"name": entry.name})
    named = {"name": entry.name, "successor": entry.successor.name}
    return Reason(CatalogCode.ENTRY_HAS_SUCCESSOR, named)


def deprecations(*entries: Template | Flavor) -> list[Finding]:
    """Those of the entries that are deprecated, by `template` and `flavor`."""
    return [
        Finding("template" if isinstance(entry, Template) else "flavor", reason)
        for entry in entries
        if (reason := deprecation_of(entry)) is not None
    ]


@dataclass(frozen=True, slots=True)
class TemplateOffer:
    """A template card, and why it cannot be had, or None."""

    template: Template
    blocker: Reason | None = None

    @property
    def reason(self) -> str:
        """Why it cannot be had, in a sentence, or an empty string."""
        return message_of(self.blocker) if self.blocker else ""

    @property
    def next_action(self) -> str:
        """What to do about it, or an empty string."""
        return next_action_of(self.blocker) if self.blocker else ""


def template_offers(templates: Iterable[Template]) -> list[TemplateOffer]:
    """Each of the templates, with the reason where no node has its program."""
    programs = installed_programs()
    return [TemplateOffer(template, missing(template, programs)) for template in templates]


def installed_programs() -> frozenset[str] | None:
    """What any real node has; None while there is no such node."""
    rows = list(
        Node.objects.filter(pool__simulated=False, pool__enabled=True, retired=False).values_list(
            "programs", flat=True
        )
    )
    if not rows:
        return None
    return frozenset(name for programs in rows for name, path in programs.items() if path)


def tool_is_missing(name: str) -> bool:
    """Whether every real node says that it lacks this program; a node that does not say may have it."""
    rows = list(
        Node.objects.filter(pool__simulated=False, pool__enabled=True, retired=False).values_list(
            "programs", flat=True
        )
    )
    return bool(rows) and all(programs.get(name) == "" for programs in rows)


def missing(template: Template, programs: frozenset[str] | None) -> Reason | None:
    """That neither a node nor its environment has the template's program, or None.

    Simulated nodes have every program.
    """
    if programs is None or template.program in programs:
        return None
    environment = template.environment
    version = environment.current if environment is not None else None
    if environment is not None and built_when_asked(environment):
        version = newest_version(environment)
    if version is not None and template.program in programs_to_come(version):
        return None
    named = {"program": template.program, "install_hint": template.install_hint}
    return Reason(CatalogCode.TEMPLATE_UNAVAILABLE, named)


def revision_subject(entry: Template | Flavor) -> tuple[SubjectKind, UUID]:
    """How the history knows the entry."""
    kind = SubjectKind.TEMPLATE if isinstance(entry, Template) else SubjectKind.FLAVOR
    return kind, entry.pk
