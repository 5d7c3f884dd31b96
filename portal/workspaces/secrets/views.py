"""Pages of secrets; templates are in templates/workspace_secrets/."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.catalog.models import Template
from portal.common import etags
from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa.proof import is_fresh
from portal.workspaces.secrets import policies, presenters, selectors, services
from portal.workspaces.secrets.forms import ChangeForm, NewForm
from portal.workspaces.secrets.models import Holder, Source


@sensitive_post_parameters("value")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def own_secrets(request: SignedInRequest) -> HttpResponse:
    """List the user's own secrets, with a form for a new one."""
    return _render_list(request, request.user)


@sensitive_post_parameters("value")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def team(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the secrets of a team. Its owners and operators can write them."""
    return _render_list(request, selectors.team_of(request.user, slug))


@sensitive_post_parameters("value")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def template(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the secrets of a template. Its maintainers can write them."""
    return _render_list(request, selectors.template_of(request.user, slug))


def _render_list(request: SignedInRequest, holder: Holder) -> HttpResponse:
    is_template = isinstance(holder, Template)
    if request.method == "POST":
        policies.require_manage(request.user, holder)
        if not is_fresh(request):
            return _redirect_to_confirm(request)
    folders = services.folders_of(holder)
    form = NewForm(request.POST or None, of_template=is_template, folders=folders)
    if request.method == "POST" and form.is_valid():
        cleaned = form.cleaned_data
        try:
            services.put_secret(
                actor=request.user,
                holder=holder,
                name=cleaned["name"].strip(),
                only_new=True,
                **form.value_or_place(),
                **form.service_arguments(),
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Secret saved. Workspaces use it from their next start."))
            return redirect(request.path)
    context = {
        "holder": holder,
        "of_template": is_template,
        "crumbs": presenters.crumbs(holder),
        "who_gets": presenters.recipients_sentence(holder),
        "secrets": list(selectors.secrets_of(holder)),
        "keeps": policies.may_manage(request.user, holder),
        "form": form,
    }
    return render(request, "workspace_secrets/list.html", context, status=form_status(form))


@sensitive_post_parameters("value")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def detail(request: SignedInRequest, secret_id: UUID) -> HttpResponse:
    """Show a secret without its value, with a form to change it."""
    secret = selectors.secret_by_id(request.user, secret_id)
    if request.method == "POST":
        policies.require_manage(request.user, secret.holder)
        if not is_fresh(request):
            return _redirect_to_confirm(request)
    place = {"vault_path": secret.vault_path, "vault_key": secret.vault_key}
    initial = {"description": secret.description, "everywhere": secret.everywhere, **place}
    form = ChangeForm(
        request.POST or None,
        of_template=secret.source is Source.TEMPLATE,
        folders=services.folders_of(secret.holder),
        in_vault=secret.in_vault,
        initial=initial,
    )
    if request.method == "POST" and form.is_valid():
        arguments, cleaned = form.service_arguments(), form.value_or_place()
        # If there is a new value, omit an unchanged path. An empty path without a value is an error.
        if cleaned["value"] and {name: cleaned[name] for name in place} == place:
            cleaned |= dict.fromkeys(place, "")
        expected = etags.expected_versions(request)
        try:
            if cleaned["value"] or {name: cleaned[name] for name in place} != place:
                services.put_secret(
                    actor=request.user,
                    holder=secret.holder,
                    name=secret.name,
                    expected=expected,
                    **cleaned,
                    **arguments,
                )
            else:
                services.change(actor=request.user, secret=secret, expected=expected, **arguments)
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Secret saved. Workspaces use it from their next start."))
            return redirect(presenters.list_url(secret.holder))
    context = {
        "secret": secret,
        "crumbs": [
            *presenters.crumbs(secret.holder),
            (presenters.list_url(secret.holder), _("Secrets")),
        ],
        "keeps": policies.may_manage(request.user, secret.holder),
        "form": form,
        "version": etags.version_of(secret),
    }
    return render(request, "workspace_secrets/detail.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, secret_id: UUID) -> HttpResponse:
    """Confirm, then delete a secret."""
    secret = selectors.secret_by_id(request.user, secret_id)
    policies.require_manage(request.user, secret.holder)
    if request.method == "POST":
        if not is_fresh(request):
            return _redirect_to_confirm(request)
        services.delete(actor=request.user, secret=secret)
        messages.success(request, _("Secret %(name)s deleted.") % {"name": secret.name})
        return redirect(presenters.list_url(secret.holder))
    context = {
        **presenters.deleting_question(secret),
        "action": request.path,
        "back": reverse("workspace_secrets:detail", args=[secret.pk]),
    }
    return render(request, "confirm.html", context)


def _redirect_to_confirm(request: SignedInRequest) -> HttpResponse:
    """Ask the user to confirm their identity, and return to an empty form, because values are not kept."""
    messages.warning(request, _("Confirm your identity, then enter the value again."))
    return redirect(f"{reverse('accounts:confirm')}?{urlencode({'next': request.path})}")
