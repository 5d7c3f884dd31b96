"""Presents the page of limits: the tree for one resource, the site's numbers, and the edited row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.http import QueryDict

from portal.common.errors import InvalidInput
from portal.common.formatting import format_input, format_resource, format_thousandths, format_unit
from portal.common.texts import strip_nul
from portal.quota.limits import resources
from portal.quota.limits.models import Cohort, Quota, ResourceRate, SiteLimit, TeamShare
from portal.quota.limits.selectors import limits, site
from portal.quota.limits.selectors.site import SiteLine, TreeRow
from portal.quota.limits.services.limits import clean_resource

MAX_ROWS = 300


@dataclass(frozen=True, slots=True)
class EditedRow:
    """The edited row, with the values of its fields."""

    row: TreeRow
    quota: str
    borrowing_limit: str
    lending_limit: str
    weight: str
    name: str
    cohort: str
    reclaim: bool
    borrow_first: bool
    preempt_first: bool
    place: TeamShare | Cohort | None


@dataclass(frozen=True, slots=True)
class LimitBoard:
    """The page of limits. `left_out` is the number of matching rows that are not visible_rows.

    `message` is the result of the last form, `problem` its error.
    """

    resource: str
    choices: list[tuple[str, str]]
    rows: list[TreeRow]
    left_out: int
    line: SiteLine
    lines: list[SiteLine]
    site_limit: str
    site_row: SiteLimit | None
    rate: str | None
    rate_row: ResourceRate | None
    cohorts: list[Cohort]
    editing: EditedRow | None
    empty: bool
    q: str = ""
    problem: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    saved: str = ""
    typed: Mapping[str, str] | None = None

    @property
    def label(self) -> str:
        return format_resource(self.resource)

    @property
    def unit(self) -> str:
        return format_unit(self.resource)

    @property
    def depths(self) -> bool:
        return bool(self.cohorts)


def board_of(
    data: QueryDict,
    *,
    problem: str = "",
    message: str = "",
    notes: tuple[str, ...] = (),
    saved: str = "",
    typed: QueryDict | None = None,
) -> LimitBoard:
    """Return the page for `data`, which has the resource, the search and the row to edit."""
    now = limits.usage_snapshot()
    lines = site.site_view(now)
    resource_names = site.known_resources(lines)
    resource, problem = _resource(data, resource_names, problem)
    q = strip_nul(data.get("q", "")).strip()[:100]
    rows = site.tree_view(now, resource)
    row_key = strip_nul(data.get("edit", "") or (data.get("row", "") if typed is not None else ""))
    chosen = next((row for row in rows if row.key == row_key), None)
    if q:
        query = q.lower()
        rows = [row for row in rows if query in row.name.lower() or query in row.slug or row is chosen]
    visible_rows = rows[:MAX_ROWS]
    if chosen is not None and chosen not in visible_rows:
        visible_rows.append(chosen)
    if resource not in resource_names:
        resource_names = [resource, *resource_names]
    line = next((line for line in lines if line.resource == resource), None)
    rate = ResourceRate.objects.filter(resource=resource).first()
    return LimitBoard(
        resource=resource,
        choices=[(name, format_resource(name)) for name in resource_names],
        rows=visible_rows,
        left_out=len(rows) - min(len(rows), len(visible_rows)),
        line=line or SiteLine(resource, 0, 0, 0, None),
        lines=lines,
        site_limit=format_input(resource, line.limit if line else None),
        site_row=SiteLimit.objects.filter(resource=resource).first(),
        rate_row=rate,
        rate=(format_thousandths(rate.rate_milli, 3) if rate else "")
        if resources.is_accelerator(resource)
        else None,
        cohorts=list(Cohort.objects.order_by("slug")),
        editing=_build_editing(chosen, resource, typed),
        empty=not Quota.objects.exists(),
        q=q,
        problem=problem,
        message=message,
        notes=notes,
        saved=saved,
        typed=typed,
    )


def _resource(data: QueryDict, names: list[str], problem: str) -> tuple[str, str]:
    """Return the resource that the query names if valid, else the first, and the problem to show."""
    name = strip_nul(data.get("resource", "")).strip()
    if not name:
        return names[0], problem
    try:
        return clean_resource(name), problem
    except InvalidInput as error:
        return names[0], problem or error.message


def _build_editing(row: TreeRow | None, resource: str, typed: QueryDict | None) -> EditedRow | None:
    if row is None:
        return None
    quota, place = row.quota, _place_of(row)
    if typed is not None and "quota" in typed:
        return EditedRow(
            row=row,
            quota=typed.get("quota", ""),
            borrowing_limit=typed.get("borrowing_limit", ""),
            lending_limit=typed.get("lending_limit", ""),
            weight=typed.get("weight", ""),
            name=typed.get("name", row.name),
            cohort=typed.get("cohort", ""),
            reclaim=typed.get("reclaim") == "on",
            borrow_first=typed.get("borrow_first") == "on",
            preempt_first=typed.get("preempt_first") == "on",
            place=place,
        )
    return EditedRow(
        row=row,
        quota=format_input(resource, quota.quota if quota else None),
        borrowing_limit=format_input(resource, quota.borrowing_limit if quota else None),
        lending_limit=format_input(resource, quota.lending_limit if quota else None),
        weight=row.weight,
        name=row.name,
        cohort=row.parent,
        reclaim=row.reclaim,
        borrow_first=isinstance(place, Cohort) and place.borrow_first,
        preempt_first=isinstance(place, Cohort) and place.preempt_first,
        place=place,
    )


def _place_of(row: TreeRow) -> TeamShare | Cohort | None:
    """Return the object with the row's place in the tree; None for a team without a share."""
    if row.kind == "cohort":
        return Cohort.objects.filter(slug=row.slug).first()
    return TeamShare.objects.filter(team__slug=row.slug).first()
