"""Pages of channels. See templates/channels/ for the contexts."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.notify.channels import policies, presenters, selectors, services
from portal.notify.channels.forms import ChannelForm
from portal.notify.channels.models import Channel, MessageState
from portal.people.accounts import policies as accounts
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Team

ROWS_PER_PAGE = 50


@sensitive_post_parameters("url")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def own_channels(request: SignedInRequest) -> HttpResponse:
    """List the user's own channels, and create one."""
    return _list_page(request, None)


@sensitive_post_parameters("url")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def team(request: SignedInRequest, slug: str) -> HttpResponse:
    """List the channels of a team, for owners and operators. Auditors can only read."""
    return _list_page(request, selectors.team_of(request.user, slug))


def _list_page(request: SignedInRequest, of: Team | None) -> HttpResponse:
    channels = selectors.channels_of(request.user, of)
    if request.method == "POST" and of is not None:
        accounts.require_manage_team(request.user, of)
    form = ChannelForm(request.POST or None, of_team=of is not None)
    if request.method == "POST" and form.is_valid():
        try:
            channel = services.create(actor=request.user, team=of, **form.service_arguments())
        except PortalError as error:
            add_problems(form, _errors_by_form_field(error), error.sentence)
        else:
            messages.success(request, _("Channel created. Send a test message to check it."))
            return redirect("channels:detail", channel.pk)
    context = {
        "team": of,
        "rows": [presenters.row_of(row) for row in channels],
        "manages": not policies.has_read_only_access(request.user, of),
        "form": form,
        "groups": form.groups(),
    }
    return render(request, "channels/list.html", context, status=form_status(form))


def _errors_by_form_field(error: PortalError) -> dict[str, list[str]]:
    return {("types" if name == "kinds" else name): texts for name, texts in error.field_errors.items()}


@sensitive_post_parameters("url")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def detail(request: SignedInRequest, channel_id: UUID) -> HttpResponse:
    """Show a channel with its state, messages and settings."""
    channel = selectors.channel_by_id(request.user, channel_id)
    if request.method == "POST":
        policies.require_channel(request.user, channel)
    form = ChannelForm(
        request.POST or None,
        of_team=channel.team is not None,
        has_url=True,
        initial={"name": channel.name, "types": channel.kinds},
    )
    if request.method == "POST" and form.is_valid():
        try:
            services.change(
                actor=request.user,
                channel=channel,
                expected=etags.expected_versions(request),
                **form.service_arguments(),
            )
        except PortalError as error:
            add_problems(form, _errors_by_form_field(error), error.sentence)
        else:
            messages.success(request, _("Channel saved."))
            return redirect("channels:detail", channel_id)
    page = Paginator(selectors.messages_of(channel), ROWS_PER_PAGE).get_page(request.GET.get("page"))
    rows = [presenters.message_row(message) for message in page.object_list]
    context = {
        "row": presenters.row_of(channel),
        "channel": channel,
        "manages": not policies.has_read_only_access(request.user, channel.team),
        "page": page,
        "rows": rows,
        "waiting": any(row.message.state == MessageState.PENDING for row in rows),
        "form": form,
        "groups": form.groups(),
        "back": list_url(channel),
    }
    template = partial_of(request, "channels/detail.html", "log")
    return render(request, template, context, status=form_status(form))


def list_url(channel: Channel) -> str:
    """Return the URL of the list that contains the channel."""
    if channel.team is None:
        return reverse("channels:own")
    return reverse("channels:team", args=[channel.team.slug])


@require_http_methods(["GET", "HEAD", "POST"])
def test(request: SignedInRequest, channel_id: UUID) -> HttpResponse:
    """Send a test. A GET, as after a new sign-in, only shows the channel."""
    channel = selectors.managed_channel(request.user, channel_id)
    if request.method == "POST":
        try:
            services.send_test(actor=request.user, channel=channel)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Test queued. The result appears below."))
    return redirect("channels:detail", channel_id)


@require_http_methods(["GET", "HEAD", "POST"])
def switch(request: SignedInRequest, channel_id: UUID) -> HttpResponse:
    """Enable or disable the channel. A GET only shows it."""
    channel = selectors.managed_channel(request.user, channel_id)
    if request.method == "POST":
        enabled = request.POST.get("enabled") == "1"
        services.change(actor=request.user, channel=channel, enabled=enabled)
        messages.success(request, _("Channel enabled.") if enabled else _("Channel disabled."))
    return redirect("channels:detail", channel_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, channel_id: UUID) -> HttpResponse:
    """Ask for confirmation, then delete the channel."""
    channel = selectors.managed_channel(request.user, channel_id)
    if request.method == "POST":
        back = list_url(channel)
        services.delete(actor=request.user, channel=channel)
        messages.success(request, _("Channel “%(name)s” deleted.") % {"name": channel.name})
        return redirect(back)
    context = {
        **presenters.deleting_question(channel),
        "action": request.path,
        "back": reverse("channels:detail", args=[channel.pk]),
    }
    return render(request, "confirm.html", context)
