"""Pages of environments. Their contexts are documented in templates/environments/."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.catalog.environments import (
    build_log,
    builds,
    policies,
    presenters,
    previews,
    selectors,
    services,
)
from portal.catalog.environments.forms import AboutForm, NewEnvironmentForm, SourceForm
from portal.catalog.environments.models import Environment
from portal.common import downloads
from portal.common.completion import MAX_OPTIONS, truncate_options
from portal.common.errors import PortalError
from portal.common.etags import expected_versions, version_of
from portal.common.htmx import partial_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import selectors as accounts
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Role, Team

ROWS_PER_PAGE = 50
OF_SOURCE = ("source", "preview")
"""Actions of the source form."""


@require_safe
@never_cache
def environment_list(request: SignedInRequest) -> HttpResponse:
    """List the visible environments, with a search."""
    query = strip_nul(request.GET.get("q", ""))[:100]
    rows = selectors.search(selectors.environments_for(request.user), query)
    page = Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    shown = list(page.object_list)
    context = {
        "page": page,
        "rows": presenters.rows_of(shown, selectors.newest_states(shown)),
        "q": query,
        "makes": policies.may_create_any(request.user),
    }
    return render(request, partial_of(request, "environments/list.html", "list"), context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Create an environment for one of the user's teams, or for all teams."""
    operates = request.user.operates
    owned = Team.objects.filter(memberships__user=request.user, memberships__role=Role.OWNER)
    teams = accounts.teams_for(request.user) if operates else owned.order_by("name")
    if not operates and not owned.exists():
        policies.require_manage(request.user, None)
    sent = (request.POST, request.FILES) if request.method == "POST" else (None, None)
    form = NewEnvironmentForm(
        *sent,
        teams=teams,
        everybody=operates,
        operates=operates,
        folders=presenters.folder_choices() if operates else (),
    )
    if form.is_valid():
        cleaned = dict(form.cleaned_data)
        slug = cleaned.pop("team")
        try:
            team = accounts.team_by_slug(request.user, slug) if slug else None
            environment = services.create(actor=request.user, team=team, **cleaned)
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Environment created. Build queued."))
            return redirect("environments:detail", environment.slug)
    return render(request, "environments/new.html", {"form": form}, status=form_status(form))


@require_safe
@never_cache
def detail(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show one environment: versions with changes, builds, and nodes that have it."""
    environment = selectors.environment_by_slug(request.user, slug)
    return render(request, "environments/detail.html", presenters.detail(request.user, environment))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def edit(request: SignedInRequest, slug: str) -> HttpResponse:
    """Change the environment's fields, or create another version."""
    environment = selectors.environment_by_slug(request.user, slug)
    policies.require_manage(request.user, environment.team)
    about_form, source = _forms(request, environment)
    action = request.POST.get("do", "") if request.method == "POST" else ""
    sent: Any = source if action in OF_SOURCE else about_form if action == "about" else None
    error: PortalError | None = None
    preview: previews.Preview | None = None
    if action == "preview" and source.is_valid():
        try:
            preview = previews.preview(actor=request.user, environment=environment, **source.cleaned_data)
        except PortalError as refused:
            error = refused
            add_problems(source, refused.field_errors, refused.sentence)
    elif sent is not None and sent.is_valid():
        change = services.change_source if action == "source" else services.change
        try:
            change(
                actor=request.user,
                environment=environment,
                expected=expected_versions(request),
                **sent.cleaned_data,
            )
        except PortalError as refused:
            error = refused
            add_problems(sent, refused.field_errors, refused.sentence)
        else:
            text = _("Build queued.") if action == "source" else _("Environment saved.")
            messages.success(request, text)
            return redirect("environments:detail", slug)
    context = {
        "environment": environment,
        "about": about_form,
        "source": source,
        "version": version_of(environment),
        "built": selectors.is_built(environment),
        "preview": preview,
        "mending": presenters.failed_build_help(selectors.newest_version(environment)),
    }
    status = error.status if error is not None else form_status(sent)
    return render(request, "environments/edit.html", context, status=status)


def _forms(request: SignedInRequest, environment: Environment) -> tuple[AboutForm, SourceForm]:
    action = request.POST.get("do", "")
    others = selectors.environments_for(request.user).exclude(pk=environment.pk)
    newest = selectors.newest_version(environment)
    about_form = AboutForm(
        request.POST if action == "about" else None,
        successors=truncate_options(
            (environment.slug, environment.name) for environment in others[: MAX_OPTIONS + 1]
        ),
        initial={
            "name": environment.name,
            "description": environment.description,
            "enabled": environment.enabled,
            "deprecated": environment.deprecated,
            "successor": environment.successor.slug if environment.successor is not None else "",
        },
    )
    source = SourceForm(
        request.POST if action in OF_SOURCE else None,
        request.FILES if action in OF_SOURCE else None,
        operates=request.user.operates,
        folders=presenters.folder_choices(newest) if request.user.operates else (),
        initial={
            "source_kind": newest.source_kind if newest is not None else "",
            "source": newest.source if newest is not None and not presenters.is_folder(newest) else "",
            "folder": newest.source if newest is not None else "",
            "python": environment.python,
        },
    )
    return about_form, source


@require_http_methods(["GET", "HEAD", "POST"])
def build(request: SignedInRequest, slug: str) -> HttpResponse:
    """Build or rebuild the newest version. A GET only shows the environment."""
    environment = selectors.environment_by_slug(request.user, slug)
    policies.require_manage(request.user, environment.team)
    if request.method == "POST":
        try:
            version = services.rebuild(actor=request.user, environment=environment)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            if builds.waits_for_node(version):
                messages.warning(request, presenters.failure_sentence(version))
            else:
                messages.success(request, _("Build queued."))
    return redirect("environments:detail", slug)


@require_http_methods(["GET", "HEAD", "POST"])
def restore(request: SignedInRequest, slug: str, number: int) -> HttpResponse:
    """Make a version the current one. A GET only shows the environment."""
    environment = selectors.environment_by_slug(request.user, slug)
    policies.require_manage(request.user, environment.team)
    if request.method == "POST":
        try:
            services.restore(actor=request.user, environment=environment, number=number)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Version %(number)d is now current.") % {"number": number})
    return redirect("environments:detail", slug)


@require_safe
@never_cache
def build_page(request: SignedInRequest, slug: str, build_id: UUID) -> HttpResponse:
    """Show one build with its live log."""
    environment = selectors.environment_by_slug(request.user, slug)
    build = selectors.build_by_id(environment, build_id)
    newest = selectors.newest_version(environment)
    context = {
        "environment": environment,
        "row": presenters.build_row(build),
        "lines": presenters.log_lines(build),
        "dropped": build.log_dropped,
        "manages": policies.may_manage(request.user, environment.team),
        "mending": presenters.failed_build_help(newest)
        if newest is not None and newest.pk == build.version_id
        else None,
    }
    return render(request, "environments/build.html", context)


@require_safe
@never_cache
def download_build_log(request: SignedInRequest, slug: str, build_id: UUID) -> HttpResponse:
    """Send the end of a build's log, up to 1 MiB, as a file."""
    environment = selectors.environment_by_slug(request.user, slug)
    build = selectors.build_by_id(environment, build_id)
    name = f"{environment.slug}-{build.version.number}-{build.node.name}.log"
    return downloads.text_file(build_log.text_of(build), name)


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: SignedInRequest, slug: str, build_id: UUID) -> HttpResponse:
    """Cancel a build. A GET only shows it."""
    environment = selectors.environment_by_slug(request.user, slug)
    build = selectors.build_by_id(environment, build_id)
    policies.require_manage(request.user, environment.team)
    if request.method == "POST":
        try:
            builds.cancel(actor=request.user, build_id=build.pk)
        except PortalError as error:
            messages.error(request, error.sentence)
    return redirect("environments:build", slug, build_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, slug: str) -> HttpResponse:
    """Ask for confirmation, then delete the environment."""
    environment = selectors.environment_by_slug(request.user, slug)
    policies.require_manage(request.user, environment.team)
    back = reverse("environments:detail", args=[slug])
    if request.method == "POST":
        try:
            services.delete(actor=request.user, environment=environment)
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect(back)
        messages.success(request, _("Environment “%(name)s” deleted.") % {"name": environment.name})
        return redirect("environments:list")
    context = {**presenters.deleting_question(environment), "action": request.path, "back": back}
    return render(request, "confirm.html", context)
