"""The page of a team: members, quota, requests, and plots of its use."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import PortalError
from portal.common.htmx import partial_of
from portal.common.typed_requests import SignedInRequest
from portal.fleet.inventory import use_history, use_plots
from portal.people.accounts import policies, selectors, services
from portal.people.accounts.forms import MemberForm, add_problems, form_status
from portal.people.accounts.models import Role
from portal.people.service_accounts import presenters as service_accounts
from portal.web.home.presenters import team as team_presenters
from portal.workspaces.homes import deletions

ROWS_PER_PAGE = 50


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def team(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show members, quota and requests of a team. Owners add members and split the quota."""
    team = selectors.team_by_slug(request.user, slug)
    form = MemberForm(request.POST or None)
    if request.method == "POST":
        policies.require_manage_team(request.user, team)
        if form.is_valid():
            try:
                membership = services.set_member(actor=request.user, team=team, **form.cleaned_data)
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                role = membership.get_role_display().lower()
                messages.success(
                    request,
                    _("%(username)s is now %(role)s of %(team)s.")
                    % {"username": membership.user.username, "role": role, "team": team.name},
                    extra_tags="members",
                )
                return redirect(f"{reverse('home:team', args=[slug])}#members")
    members = team.memberships.select_related("user").order_by("user__username")
    page = Paginator(members, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "team": team,
        "page": page,
        "may_manage": team.deletion_started_at is None and policies.may_manage_team(request.user, team),
        "homes_left": deletions.waiting(team=team).count(),
        "own_membership": members.filter(user=request.user).first(),
        "created": "created" in request.GET,
        "may_ask": policies.may_work_in(request.user, team),
        "workspaces": team_presenters.workspaces_of(request.user, team),
        "form": form,
        "roles": Role.choices,
        **service_accounts.team_section_context(request.user, team),
        **team_presenters.quota_of(request.user, team, page.object_list),
    }
    return render(request, "home/team.html", context, status=form_status(form))


@require_safe
@never_cache
def team_use(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show plots of a team: allocated GPUs, and their measurements. `?span=week|month`."""
    team = selectors.team_by_slug(request.user, slug)
    span = use_plots.span_of(request.GET.get("span", ""))
    use, simulated = team_presenters.use_of(team, use_history.window(span, timezone.now()))
    context = use_plots.page_context(
        use,
        name=team.name,
        url=reverse("home:team", args=[team.slug]),
        here=reverse("home:team-use", args=[team.slug]),
        simulated=simulated,
        span=span,
    )
    return render(request, partial_of(request, "components/use_page.html", "plots"), context)
