"""Presents reclaim policies for pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.catalog.models import Flavor, Template
from portal.common.formatting import format_duration, format_number
from portal.common.history import presenters as kept_versions
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.history.presenters import ChangedField, Version
from portal.fleet.inventory.models import Pool
from portal.people.accounts.models import Team, User
from portal.people.accounts.selectors import own_teams
from portal.reclaim import effective, policies, presenters
from portal.reclaim.engine.terms import Terms
from portal.reclaim.models import PolicyScope, ReclaimPolicy
from portal.reclaim.policy_forms import DAY_NAMES, LABELS
from portal.reclaim.previews import Preview

MAX_TARGETS = 1000
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy in a list. `says` has one line per value."""

    kind: str
    name: str
    url: str
    says: tuple[str, ...]


def url_of(row: ReclaimPolicy, name: str = "policy") -> str:
    """Return the URL of the policy's page, or of an action (`edit`, `delete`)."""
    return reverse(f"reclaim:{name}" if name == "policy" else f"reclaim:{name}-policy", args=[row.pk])


def name_of(row: ReclaimPolicy) -> str:
    """Return the policy's target as text: “Flavor A100, whole”; “The site”."""
    kind = str(PolicyScope(row.scope).label)
    if row.subject is None:
        return kind
    return _("%(kind)s %(name)s") % {"kind": kind, "name": row.subject.name}


def rows(selected: Iterable[ReclaimPolicy]) -> list[PolicyRow]:
    """Return the rows of a list, from the widest scope to the narrowest."""
    order = list(PolicyScope.values)
    return [
        PolicyRow(
            str(PolicyScope(row.scope).label),
            row.subject.name if row.subject is not None else _("all workspaces"),
            url_of(row),
            tuple(f"{label}: {value}" for label, value in term_rows(effective.terms_of(row))),
        )
        for row in sorted(selected, key=lambda row: (order.index(row.scope), row.target))
    ]


def settings_row() -> PolicyRow:
    """Return the row for the site's settings, which have no page."""
    terms = effective.site_terms()
    return PolicyRow("", "", "", tuple(f"{label}: {value}" for label, value in term_rows(terms)))


def term_rows(terms: Terms, *, in_full: bool = False) -> list[tuple[str, str]]:
    """Return the values of a policy as pairs of label and text; with `in_full`, lists each holiday."""
    lines = []

    def limit(label: str, seconds: int | None, never: str) -> None:
        if seconds is not None:
            lines.append((label, format_duration(seconds) if seconds else never))

    never = _("never stopped")
    limit(_("Idle limit without GPUs"), terms.idle_s, never)
    limit(_("Idle limit with GPUs"), terms.idle_gpu_s, never)
    limit(_("GPU idle limit"), terms.gpu_unused_s, never)
    limit(_("GPUs are released after"), terms.release_s, never)
    limit(_("Maximum lifetime"), terms.longest_s, _("no limit"))
    limit(_("Notice before a stop"), terms.notice_s, _("none"))
    limit(_("Unused home folders are archived after"), terms.archive_s, _("never"))
    limit(_("Archived home folders can be deleted after"), terms.delete_s, _("never"))
    if terms.stop_when_spent is not None:
        text = _("workspaces with GPUs stop") if terms.stop_when_spent else _("workspaces continue")
        lines.append((_("When GPU-hours are spent"), text))
    if terms.week is not None:
        lines.append((_("Hours"), presenters.week_text(terms.week)))
    if terms.week is not None and terms.week.holidays:
        days = len(terms.week.holidays)
        text = ngettext("on %(days)s day", "on %(days)s days", days) % {"days": days}
        if in_full:
            text = ", ".join(holiday.isoformat() for holiday in sorted(terms.week.holidays))
        lines.append((_("Holidays"), text))
    return lines


def format_value(field: str, value: Any) -> str:
    """Return a value of a document as text; a dash if empty."""
    if value in (None, "", []):
        return "–"
    match value:
        case bool():
            return _("Yes") if value else _("No")
        case int() if field.endswith("_minutes"):
            return format_duration(value * MINUTE_S) if value else _("never")
        case int() if field.endswith("_days"):
            return format_duration(value * DAY_S) if value else _("never")
        case int() if field.endswith("_hours"):
            return format_duration(value * HOUR_S) if value else _("no limit")
        case list() if field == "days":
            return ", ".join(str(DAY_NAMES.get(item, item)) for item in value)
        case list():
            return ", ".join(str(item) for item in value)
    return str(value)


def format_differences(differences: Sequence[history.Difference]) -> tuple[ChangedField, ...]:
    """Return differences of two documents as text."""
    return tuple(
        ChangedField(
            str(LABELS.get(difference.field, difference.field)),
            format_value(difference.field, difference.before),
            format_value(difference.field, difference.after),
        )
        for difference in differences
    )


def versions(actor: User, row: ReclaimPolicy) -> list[Version]:
    """Return the newest versions with their changes; empty unless the actor may see them."""
    keeps = policies.may_change(actor, row)
    if not (keeps or actor.sees_all):
        return []
    return [
        Version(
            version,
            format_differences(changes),
            reverse("reclaim:restore-policy", args=[row.pk, version.number]) if keeps and place else "",
        )
        for place, (version, changes) in enumerate(kept_versions.newest(SubjectKind.RECLAIM, row.pk))
    ]


def targets(actor: User) -> list[tuple[str, Any]]:
    """Return the targets without a policy that the actor can choose, as grouped choices of a form."""
    policies = set(
        ReclaimPolicy.objects.values_list("scope", "pool_id", "template_id", "flavor_id", "team_id")
    )
    taken: set[tuple[str, UUID | None]] = {
        (scope, next((key for key in keys if key is not None), None)) for scope, *keys in policies
    }
    options: list[tuple[str, Any]] = []
    groups: list[tuple[PolicyScope, Any]] = []
    if actor.operates:
        if (PolicyScope.SITE, None) not in taken:
            options.append((PolicyScope.SITE.value, str(PolicyScope.SITE.label)))
        groups = [
            (PolicyScope.POOL, Pool.objects.filter(deleted_at=None)),
            (PolicyScope.TEMPLATE, Template.objects.filter(deleted_at=None)),
            (PolicyScope.FLAVOR, Flavor.objects.filter(deleted_at=None)),
            (PolicyScope.TEAM, Team.objects.all()),
        ]
    else:
        groups = [
            (PolicyScope.TEAM, own_teams(actor).filter(memberships__user=actor, memberships__role="owner"))
        ]
    for scope, subjects in groups:
        choices = [
            (f"{scope.value}:{slug}", name)
            for key, slug, name in subjects.order_by("slug").values_list("pk", "slug", "name")[:MAX_TARGETS]
            if (scope, key) not in taken
        ]
        if choices:
            options.append((str(scope.label), choices))
    return options


def flatten_choices(choices: list[tuple[str, Any]]) -> set[str]:
    """Return the values of grouped choices."""
    return {
        value
        for name, inner in choices
        for value in ([choice for choice, _label in inner] if isinstance(inner, list) else [name])
    }


def preview_text(preview: Preview) -> str:
    """Return a preview as a sentence."""
    if not preview.starts:
        return _("No matching workspace ran in this time.")
    if not preview.stops:
        return ngettext(
            "Would not have stopped the %(starts)s recorded start.",
            "Would have stopped none of the %(starts)s recorded starts.",
            preview.starts,
        ) % {"starts": preview.starts}
    workspaces = ngettext("%(count)s workspace", "%(count)s workspaces", preview.workspaces)
    if preview.interrupted:
        interrupted_text = ngettext("interrupted %(count)s", "interrupted %(count)s", preview.interrupted)
    else:
        interrupted_text = _("interrupted no work")
    if preview.releases == preview.stops:
        text = _("Would have released the GPUs of %(workspaces)s, freed %(hours)s GPU-hours and %(whom)s.")
    elif preview.releases:
        text = _(
            "Would have stopped or released the GPUs of %(workspaces)s, freed %(hours)s "
            "GPU-hours and %(whom)s."
        )
    else:
        text = _("Would have stopped %(workspaces)s, freed %(hours)s GPU-hours and %(whom)s.")
    return text % {
        "workspaces": workspaces % {"count": preview.workspaces},
        "hours": format_number(preview.gpu_hours, 1 if preview.gpu_hours < 10 else 0),
        "whom": interrupted_text % {"count": preview.interrupted},
    }
