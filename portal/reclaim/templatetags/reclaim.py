"""Template tags about lifetimes and unused homes, for pages of other apps."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import template
from django.db.models import Q
from django.utils.html import format_html
from django.utils.translation import gettext as _

from portal.catalog.lifetimes import terms_of
from portal.catalog.models import Flavor, Template
from portal.common.formatting import format_span
from portal.people.accounts.models import User
from portal.reclaim import home_presenters, pacing, presenters, scheduled_starts
from portal.reclaim.home_presenters import HomeLine
from portal.reclaim.models import HomeStay
from portal.reclaim.rebalancing import presenters as rebalancing
from portal.reclaim.rebalancing import selectors as rebalancing_selectors
from portal.workspaces.homes.moves import may_move
from portal.workspaces.models import HomePlace, Workspace

register = template.Library()


@register.inclusion_tag("reclaim/time_left.html", takes_context=True)
def life(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Render the remaining lifetime and the form to extend it."""
    user: User = context["request"].user
    remaining = presenters.life_of(workspace, user)
    return {"life": remaining, "workspace": workspace, "csrf_token": context.get("csrf_token")}


@register.inclusion_tag("reclaim/low_placement_health.html")
def discontent(workspace: Workspace) -> dict[str, Any]:
    """Render in one line why the placement health is low; empty if it is not."""
    record = rebalancing_selectors.discontent_of(workspace)
    return {"record": record, "reason": rebalancing.low_score_reason(record) if record is not None else ""}


@register.inclusion_tag("reclaim/progress.html")
def progress(workspace: Workspace) -> dict[str, Any]:
    """Render the reported pace of the work; empty without reports."""
    return {"rows": pacing.progress_of(workspace)}


@register.simple_tag(takes_context=True)
def home_stays(context: dict[str, Any], rows: Iterable[Any]) -> dict[int, HomeLine]:
    """Return the state of the homes in rows with a `place`, by primary key."""
    return home_presenters.lines(context["request"].user, [row.place for row in rows])


@register.simple_tag
def home_text(place: HomePlace, stays: dict[int, HomeLine]) -> str:
    """Return a paragraph about a home that needs no action, or an empty string."""
    line = stays.get(place.pk)
    if line is None or line.matters or not line.text:
        return ""
    return format_html('<p class="small muted">{}</p>', line.text)


@register.inclusion_tag("reclaim/home_notes.html", takes_context=True)
def home_cards(context: dict[str, Any], stays: dict[int, HomeLine]) -> dict[str, Any]:
    """Render announcements and archives of these homes with their actions."""
    return _notes(context, [line for line in stays.values() if line.matters], _("Unused for a long time"))


@register.inclusion_tag("reclaim/home_notes.html", takes_context=True)
def home_notes(context: dict[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Render announcements and archives of a workspace's homes, for users who decide about them."""
    user: User = context["request"].user
    lines: list[HomeLine] = []
    if may_move(user, workspace.owner_id):
        places = HomePlace.objects.filter(owner=workspace.owner_id, team=workspace.team_id)
        lines = [line for line in home_presenters.lines(user, places).values() if line.matters]
    return _notes(context, lines, _("Home folder"))


@register.inclusion_tag("reclaim/home_notes.html", takes_context=True)
def home_warnings(context: dict[str, Any]) -> dict[str, Any]:
    """Render announcements and archives of the user's own homes. One query without any."""
    user: User = context["request"].user
    warned = Q(warned_s__isnull=False) | Q(archive__isnull=False)
    stays = HomeStay.objects.filter(warned, place__owner=user).select_related("place")
    places = [stay.place for stay in stays]
    lines = home_presenters.lines(user, places).values() if places else ()
    return _notes(context, [line for line in lines if line.matters], _("Home folder"))


def _notes(context: dict[str, Any], lines: list[HomeLine], title: str) -> dict[str, Any]:
    request = context["request"]
    return {
        "lines": lines,
        "title": title,
        "reader": request.user,
        "here": request.get_full_path(),
        "goes_on": any(line.archive is not None and line.archive.open for line in lines),
        "csrf_token": context.get("csrf_token"),
    }


@register.simple_tag
def next_start(workspace: Workspace) -> datetime | None:
    """Return when a schedule starts the workspace again, or None."""
    return scheduled_starts.next_start_of(workspace)


@register.simple_tag
def lifetime_note(template: Template, flavor: Flavor) -> str:
    """Return a note about the default and maximum lifetime for the form."""
    terms = terms_of(template, flavor)
    if terms.default_s is None:
        return _("No end by default.")
    default = format_span(terms.default_s)
    if terms.max_s is None:
        return _("After %(default)s by default. Files are kept, and you can extend it.") % {
            "default": default
        }
    if terms.max_s == terms.default_s:
        return _("After up to %(default)s. Files are kept, and you can start it again.") % {
            "default": default
        }
    text = _("After %(default)s by default. Files are kept, and you can extend it up to %(most)s.")
    return text % {"default": default, "most": format_span(terms.max_s)}
