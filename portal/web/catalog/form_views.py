"""Forms for new and changed templates and flavors, which are checked while users fill them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.catalog import documents, entries, policies, rules, selectors
from portal.catalog.environments import selectors as environment_selectors
from portal.catalog.environments.models import Environment
from portal.catalog.models import Template
from portal.common import etags
from portal.common.errors import PortalError
from portal.common.htmx import requests_element
from portal.common.reasons.wording import message_of
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory.selectors import folders_shown
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Team
from portal.people.accounts.policies import require_manage_team, require_operator
from portal.people.accounts.selectors import team_by_slug
from portal.web.catalog import environments, presenters, presets, sections
from portal.web.catalog.form_previews import form_preview
from portal.web.catalog.forms import EntryForm, FlavorForm, TemplateForm, initial_values
from portal.web.catalog.previews import Preview, preview
from portal.web.catalog.views import MODELS, entry_of


@dataclass(frozen=True, slots=True)
class FormPage:
    """A form, with the service that saves it. `entry` is the changed entry; `team` owns the template."""

    kind: str
    form: EntryForm
    team: Team | None
    save: Callable[[dict[str, Any]], Any]
    entry: Any = None


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest, kind: str) -> HttpResponse:
    """Show and handle the form of a new entry.

    `preset`, or an entry to copy (`of`), fills the form; with `team`, the entry belongs to the team.
    """
    slug = strip_nul(request.GET.get("team", "")) if kind == "template" else ""
    team = team_by_slug(request.user, slug) if slug else None
    if team is not None:
        require_manage_team(request.user, team)
    elif (
        kind == "template"
        and not request.user.operates
        and (own := presenters.teams_to_create_for(request.user).first())
    ):
        # Team owners who are not operators create templates for their team.
        return redirect(f"{request.path}?team={own.slug}")
    else:
        require_operator(request.user)
    requested_environment = _requested_environment(request, team) if kind == "template" else None
    initial, copied, preset = _initial_of_new(request, kind, requested_environment)
    form = _form(request, kind, team=team, initial=initial)

    def save(values: dict[str, Any]) -> Any:
        entry = entries.create(actor=request.user, model=MODELS[kind], values=values, team=team)
        messages.success(request, _("%(name)s created.") % {"name": entry.name})
        return entry

    context = {
        "teams": presenters.teams_to_choose(presenters.teams_to_create_for(request.user)),
        "of": copied,
        "preset": preset,
        "presets": presets.PRESETS if kind == "template" else (),
        "bases": presenters.bases(request.user, kind),
        "requested_environment": requested_environment,
        "back": reverse(f"catalog_pages:{kind}s"),
    }
    return _answer(request, FormPage(kind, form, team, save), context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def edit(request: SignedInRequest, kind: str, slug: str) -> HttpResponse:
    """Show and handle the form that changes an entry. A concurrent change is reported, not overwritten."""
    entry = entry_of(request, kind, slug)
    policies.require_manage(request.user, entry)
    team = entry.team if isinstance(entry, Template) else None
    initial = initial_values(documents.document_of(entry)) | {"version": etags.version_of(entry)}
    form = _form(request, kind, team=team, initial=initial, entry=entry)

    def save(values: dict[str, Any]) -> Any:
        entries.change(
            actor=request.user, entry=entry, values=values, expected=etags.expected_versions(request)
        )
        messages.success(request, _("%(name)s saved.") % {"name": entry.name})
        return entry

    page = FormPage(kind, form, team, save, entry)
    return _answer(request, page, {"entry": entry, "back": presenters.url_of(entry)})


def _answer(request: SignedInRequest, page: FormPage, extra_context: dict[str, Any]) -> HttpResponse:
    """Show, check or save a form. A check returns only the errors and the preview."""
    form, checks = page.form, requests_element(request, "form-preview")
    fits: Preview | None = None
    warnings: list[str] = []
    if request.method == "POST" and form.is_valid():
        try:
            if checks or "preview" in request.POST:
                fits, warnings = _fits(request, page)
            else:
                return redirect(presenters.url_of(page.save(form.service_arguments())))
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
    if checks:
        form.drop_missing(request.htmx.trigger_name or "")
    else:
        sections.focus_first_error(form)
    context = {
        **extra_context,
        "kind": page.kind,
        "form": form,
        "team": page.team,
        "basics": sections.basics_of(form),
        "sections": sections.sections_of(form),
        "shown": form_preview(form),
        "preview": fits,
        "warnings": warnings,
    }
    if checks:
        return render(request, "catalog_pages/checked.html", context)
    return render(request, "catalog_pages/form.html", context, status=form_status(form))


def _form(
    request: SignedInRequest,
    kind: str,
    *,
    team: Team | None,
    initial: dict[str, Any],
    entry: Any = None,
) -> EntryForm:
    data, changing = request.POST if request.method == "POST" else None, entry is not None
    form: EntryForm
    if kind == "template":
        present = entry.environment if isinstance(entry, Template) else None
        form = TemplateForm(
            data,
            initial=initial,
            changing=changing,
            own=team is not None,
            environments=environments.choices(request.user, team, present),
            team=team.slug if team is not None else "",
            folders=() if team is not None else folders_shown(),
        )
    else:
        form = FlavorForm(data, initial=initial, changing=changing)
    form.check_live(request.get_full_path())
    return form


def _initial_of_new(
    request: SignedInRequest, kind: str, requested_environment: Environment | None
) -> tuple[dict[str, Any], str, str]:
    """Return the initial values of a new entry, and the copied entry or the preset in the URL."""
    blank = sections.new_document(kind)
    copied = strip_nul(request.GET.get("of", ""))
    preset = presets.preset(request.GET.get("preset", "")) if kind == "template" else None
    initial = initial_values(blank)
    if preset is not None:
        copied, initial = "", initial_values({**blank, **preset.document})
    elif requested_environment is not None and "of" not in request.GET:
        # Most users want a notebook, so start from a copy of its template.
        copied = presenters.first_matching_template(request.user, requested_environment)
    if copied:
        source = entry_of(request, kind, copied)
        if isinstance(source, Template) and not policies.may_see_command(request.user, source):
            policies.require_manage(request.user, source)
        initial = initial_values(documents.document_of(source)) | {"slug": "", "name": ""}
    if requested_environment is not None:
        initial["environment"] = requested_environment.slug
    return initial, copied, preset.key if preset is not None else ""


def _requested_environment(request: SignedInRequest, team: Team | None) -> Environment | None:
    """Return the environment in the URL for a new template, if it is usable there."""
    slug = strip_nul(request.GET.get("environment", ""))
    return environment_selectors.usable_by(request.user, team).filter(slug=slug).first() if slug else None


def _fits(request: SignedInRequest, page: FormPage) -> tuple[Preview | None, list[str]]:
    """Return where the unsaved entry fits, and its warnings. Raises the same errors as saving it."""
    document = page.form.service_arguments()
    if page.entry is not None:
        document = {**documents.document_of(page.entry), **document}
    draft: Any = entries.draft(actor=request.user, model=MODELS[page.kind], values=document, team=page.team)
    if page.kind == "flavor":
        return preview(request.user, draft), []
    warnings = [message_of(warning.reason) for warning in rules.template_warnings(draft)]
    size = selectors.flavors_for(request.user).filter(enabled=True).first()
    return (preview(request.user, size, draft, page.team) if size is not None else None), warnings
