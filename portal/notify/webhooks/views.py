"""Pages of webhooks. See templates/webhooks/ for the contexts."""

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
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.events.event_types import types_for
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.notify.webhooks import policies, presenters, selectors, services
from portal.notify.webhooks.forms import WebhookForm
from portal.notify.webhooks.models import DeliveryState, Endpoint
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Team

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def site(request: SignedInRequest) -> HttpResponse:
    """List the webhooks of the site, for operators. Auditors can only read."""
    return _list_page(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def team(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the webhooks of a team, for owners and operators. Auditors can only read."""
    return _list_page(request, selectors.team_of(request.user, slug))


def _list_page(request: SignedInRequest, of: Team | None) -> HttpResponse:
    """List webhooks and create one. The secret is shown only once."""
    endpoints = selectors.endpoints_of(request.user, of)
    manages = not policies.has_read_only_access(request.user)
    if request.method == "POST":
        policies.require_manage(request.user, of)
    form = _form(request, of)
    created = None
    if request.method == "POST" and form.is_valid():
        try:
            created = services.create(actor=request.user, team=of, **form.cleaned_data)
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            form = _form(request, of, empty=True)
    context = {
        "team": of,
        "rows": [presenters.row_of(endpoint, secrets=manages) for endpoint in endpoints],
        "manages": manages,
        "form": form,
        "made": created,
        "groups": form.groups(),
    }
    return render(request, "webhooks/list.html", context, status=form_status(form))


def _form(
    request: SignedInRequest, of: Team | None, *, empty: bool = False, endpoint: Endpoint | None = None
) -> WebhookForm:
    offered = types_for(policies.audience_of(request.user, of))
    initial = {"name": endpoint.name, "url": endpoint.url, "types": endpoint.types} if endpoint else None
    sent = request.POST if request.method == "POST" and not empty else None
    return WebhookForm(sent, offered=offered, initial=initial)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def detail(request: SignedInRequest, webhook_id: UUID) -> HttpResponse:
    """Show a webhook with its state, event types and deliveries."""
    endpoint = selectors.endpoint_by_id(request.user, webhook_id)
    if request.method == "POST":
        policies.require_endpoint(request.user, endpoint)
    form = _form(request, endpoint.team, endpoint=endpoint)
    if request.method == "POST" and form.is_valid():
        try:
            services.change(
                actor=request.user,
                endpoint=endpoint,
                expected=etags.expected_versions(request),
                **form.cleaned_data,
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Webhook saved."))
            return redirect("webhooks:detail", webhook_id)
    return _detail(request, endpoint, form=form)


def _detail(
    request: SignedInRequest, endpoint: Endpoint, *, form: WebhookForm | None = None, secret: str = ""
) -> HttpResponse:
    form = form or _form(request, endpoint.team, empty=True, endpoint=endpoint)
    only = request.GET.get("state", "")
    log = selectors.deliveries_of(endpoint)
    if only in DeliveryState.values:
        log = log.filter(state=only)
    page = Paginator(log, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    manages = not policies.has_read_only_access(request.user)
    rows = [presenters.delivery_row(delivery, secrets=manages) for delivery in page.object_list]
    context: dict[str, Any] = {
        "row": presenters.row_of(endpoint, secrets=manages),
        "manages": manages,
        "endpoint": endpoint,
        "page": page,
        "rows": rows,
        "only": only,
        "statuses": DeliveryState.choices,
        "waiting": any(row.delivery.state == DeliveryState.PENDING for row in rows),
        "form": form,
        "groups": form.groups(),
        "secret": secret,
        "back": list_url(endpoint),
    }
    template = partial_of(request, "webhooks/detail.html", "log")
    return render(request, template, context, status=form_status(form))


def list_url(endpoint: Endpoint) -> str:
    """Return the URL of the list that contains the webhook."""
    if endpoint.team is None:
        return reverse("webhooks:site")
    return reverse("webhooks:team", args=[endpoint.team.slug])


@require_http_methods(["GET", "HEAD", "POST"])
def test(request: SignedInRequest, webhook_id: UUID) -> HttpResponse:
    """Send a test. A GET, as after a new sign-in, only shows the webhook."""
    endpoint = selectors.managed_endpoint(request.user, webhook_id)
    if request.method == "POST":
        try:
            services.send_test(actor=request.user, endpoint=endpoint)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Test queued. The result appears in the delivery log."))
    return redirect("webhooks:detail", webhook_id)


@require_http_methods(["GET", "HEAD", "POST"])
def redeliver(request: SignedInRequest, webhook_id: UUID, delivery_id: UUID) -> HttpResponse:
    """Redeliver a delivery. A GET only shows the webhook."""
    endpoint = selectors.managed_endpoint(request.user, webhook_id)
    delivery = selectors.delivery_by_id(endpoint, delivery_id)
    if request.method == "POST":
        try:
            services.redeliver(actor=request.user, delivery=delivery)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Delivery queued again."))
    return redirect("webhooks:detail", webhook_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def rotate(request: SignedInRequest, webhook_id: UUID) -> HttpResponse:
    """Rotate the secret and show the new one once. A GET only shows the webhook."""
    endpoint = selectors.managed_endpoint(request.user, webhook_id)
    if request.method != "POST":
        return redirect("webhooks:detail", webhook_id)
    rotated = services.rotate_secret(actor=request.user, endpoint=endpoint)
    return _detail(request, rotated.endpoint, secret=rotated.secret)


@require_http_methods(["GET", "HEAD", "POST"])
def switch(request: SignedInRequest, webhook_id: UUID) -> HttpResponse:
    """Enable or disable the webhook. A GET only shows it."""
    endpoint = selectors.managed_endpoint(request.user, webhook_id)
    if request.method == "POST":
        changed = services.change(
            actor=request.user, endpoint=endpoint, enabled=request.POST.get("enabled") == "1"
        )
        messages.success(request, _("Webhook enabled.") if changed.enabled else _("Webhook disabled."))
    return redirect("webhooks:detail", webhook_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, webhook_id: UUID) -> HttpResponse:
    """Ask for confirmation, then delete the webhook."""
    endpoint = selectors.managed_endpoint(request.user, webhook_id)
    if request.method == "POST":
        back = list_url(endpoint)
        services.delete(actor=request.user, endpoint=endpoint)
        messages.success(request, _("Webhook “%(name)s” deleted.") % {"name": endpoint.name})
        return redirect(back)
    context = {
        **presenters.deleting_question(endpoint),
        "action": request.path,
        "back": reverse("webhooks:detail", args=[endpoint.pk]),
    }
    return render(request, "confirm.html", context)
