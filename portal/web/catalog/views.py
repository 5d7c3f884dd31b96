"""Pages of templates and flavors; templates are in templates/catalog_pages/."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.catalog import documents, entries, policies, rules, selectors
from portal.catalog.models import Flavor, Template
from portal.common import etags
from portal.common.completion import MAX_OPTIONS
from portal.common.errors import PortalError
from portal.common.history import selectors as history
from portal.common.htmx import partial_of
from portal.common.reasons.wording import message_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.models import Team
from portal.people.accounts.selectors import own_teams, team_by_slug
from portal.web.catalog import presenters
from portal.web.catalog.previews import Preview, preview
from portal.web.catalog.starts import start_with
from portal.workspaces.models import Workspace
from portal.workspaces.policies import visible_to

ROWS_PER_PAGE = 50
MODELS: dict[str, Any] = {"template": Template, "flavor": Flavor}


def _entries_for(request: SignedInRequest, kind: str) -> Any:
    return (
        selectors.templates_for(request.user) if kind == "template" else selectors.flavors_for(request.user)
    )


def entry_of(request: SignedInRequest, kind: str, slug: str) -> Any:
    selector = selectors.visible_template if kind == "template" else selectors.visible_flavor
    return selector(request.user, slug)


@require_safe
@never_cache
def listing(request: SignedInRequest, kind: str) -> HttpResponse:
    """List the entries visible to the user, with a search."""
    rows = _entries_for(request, kind).order_by("position", "slug")
    q = strip_nul(request.GET.get("q", "")).strip()[:100]
    state = request.GET.get("state", "")
    if q:
        rows = selectors.search(rows, q)
    if state == "off":
        rows = rows.filter(enabled=False)
    elif state == "deprecated":
        rows = rows.filter(deprecated=True)
    page = Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    makes = kind == "template" and presenters.teams_to_create_for(request.user).exists()
    context = {
        "kind": kind,
        "page": page,
        "rows": presenters.rows(request.user, list(page.object_list)),
        "q": q,
        "state": state,
        "may_make": request.user.operates or makes,
    }
    return render(request, partial_of(request, "catalog_pages/list.html", "entries"), context)


@require_safe
@never_cache
def detail(request: SignedInRequest, kind: str, slug: str) -> HttpResponse:
    """Show an entry: its definition, where it fits, a preview for a team, and its versions."""
    entry = entry_of(request, kind, slug)
    own = None if request.user.sees_all else set(own_teams(request.user).values_list("pk", flat=True))
    shows = isinstance(entry, Flavor) or policies.may_see_command(request.user, entry)
    params, preview, problem = _preview(request, entry)
    document = documents.document_of(entry)
    hidden = {"slug", "name", "description", "enabled", "deprecated", "successor", "teams", "team"}
    hidden |= {"environment"}
    facts = [
        (presenters.LABELS[name], text)
        for name, value in document.items()
        if name not in hidden
        and (shows or name in ("program", "min_cuda", "min_compute_capability"))
        and (text := presenters.format_field(type(entry), name, value)) != "–"
    ]
    runs_in = presenters.template_environment(request.user, entry) if isinstance(entry, Template) else None
    context = {
        "kind": kind,
        "entry": entry,
        "row": presenters.rows(request.user, [entry])[0],
        "audience": presenters.audience(entry, own),
        "notes": presenters.notes(entry),
        "warnings": [message_of(warning.reason) for warning in rules.template_warnings(entry)]
        if isinstance(entry, Template) and shows
        else [],
        "facts": facts,
        "runs_in": runs_in,
        "keeps": policies.may_manage(request.user, entry),
        "start": start_with(request.user, entry),
        "edit_url": presenters.url_of(entry, "edit"),
        "delete_url": presenters.url_of(entry, "delete"),
        "versions": presenters.versions(request.user, entry),
        "preview": preview,
        "asked": params,
        "preview_problem": problem,
        "teams": presenters.teams_to_choose(
            Team.objects.order_by("slug") if request.user.sees_all else own_teams(request.user)
        ),
        "others": _entries_for(request, "flavor" if kind == "template" else "template")
        .filter(enabled=True)
        .values_list("slug", "name")[:MAX_OPTIONS],
    }
    return render(request, partial_of(request, "catalog_pages/detail.html", "fits"), context)


def _preview(request: SignedInRequest, entry: Any) -> tuple[dict[str, str], Preview | None, str]:
    """Return the query, the preview, and the error if there is no preview."""
    params = {name: strip_nul(request.GET.get(name, "")).strip()[:81] for name in ("team", "other")}
    try:
        team = team_by_slug(request.user, params["team"]) if params["team"] else None
        if isinstance(entry, Flavor):
            other = selectors.visible_template(request.user, params["other"]) if params["other"] else None
            return params, preview(request.user, entry, other, team), ""
        if not params["other"]:
            return params, None, ""
        return (
            params,
            preview(request.user, selectors.visible_flavor(request.user, params["other"]), entry, team),
            "",
        )
    except PortalError as refused:
        return params, None, refused.sentence


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, kind: str, slug: str) -> HttpResponse:
    """Show who uses an entry and ask for confirmation, then delete it."""
    entry = entry_of(request, kind, slug)
    policies.require_manage(request.user, entry)
    if request.method == "POST":
        try:
            entries.delete(actor=request.user, entry=entry, expected=etags.expected_versions(request))
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect(presenters.url_of(entry, "delete"))
        messages.success(request, _("%(name)s deleted.") % {"name": entry.name})
        return redirect(f"catalog_pages:{kind}s")
    using = Workspace.objects.live().filter(**{kind: entry})
    users_of_entry = (
        visible_to(request.user, using).order_by("name").values_list("name", "owner__username")[:50]
    )
    count = using.count()
    holds = [_("%(name)s of %(owner)s") % {"name": name, "owner": owner} for name, owner in users_of_entry]
    if count > len(holds):
        holds.append(_("%(count)s of other users") % {"count": count - len(holds)})
    predecessors = list(entry.predecessors.filter(deleted_at=None).values_list("name", flat=True)[:20])
    loses = [_("this entry; users can no longer choose it"), _("its slug, which can then be reused")]
    if predecessors:
        loses.append(_("its role as successor of: %(names)s") % {"names": ", ".join(predecessors)})
    context = {
        "title": _("Delete %(name)s?") % {"name": entry.name},
        "loses": loses,
        "stays": [_("the records of ended workspaces and the audit log")],
        "yes": _("Delete"),
        "action": request.path,
        "back": presenters.url_of(entry),
        "holds": holds,
        "hold_lead": _(
            "Workspaces use this entry. Disable it, and delete it when these workspaces are deleted:"
        ),
        "holds_url": presenters.workspaces_url(entry),
    }
    return render(request, "confirm.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def restore(request: SignedInRequest, kind: str, slug: str, number: int) -> HttpResponse:
    """Show the changes and ask for confirmation, then restore a version."""
    entry = entry_of(request, kind, slug)
    policies.require_manage(request.user, entry)
    data = history.revision(*selectors.revision_subject(entry), number)
    if request.method == "POST":
        try:
            entries.restore(
                actor=request.user, entry=entry, number=number, expected=etags.expected_versions(request)
            )
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(
                request,
                _("Version %(number)s of %(name)s restored.") % {"name": entry.name, "number": number},
            )
        return redirect(presenters.url_of(entry))
    differences = history.differences(documents.document_of(entry), data.data)
    changes = [
        f"{difference.label}: {difference.before[:200]} → {difference.after[:200]}"
        for difference in presenters.format_differences(type(entry), differences)
    ]
    context = {
        "title": _("Restore version %(number)s of %(name)s?") % {"number": number, "name": entry.name},
        "loses": changes or [_("nothing; the entry is already like this")],
        "stays": [_("the current settings, as a version"), _("running workspaces, unchanged")],
        "yes": _("Restore"),
        "action": request.path,
        "back": presenters.url_of(entry),
    }
    return render(request, "confirm.html", context)
