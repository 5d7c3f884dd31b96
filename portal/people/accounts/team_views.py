"""Pages of a team: name, turns in the queue, archive, deletion, egress policy."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.common import etags
from portal.common.errors import PortalError
from portal.common.reasons.reason import Reason
from portal.common.reasons.wording import sentence_of
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import policies, presenters, selectors, team_egress, teams
from portal.people.accounts.codes import AccountCode
from portal.people.accounts.forms import TeamEgressForm, TeamNameForm, add_problems, form_status
from portal.people.accounts.team_contents import team_contents

VERSIONS_SHOWN = 20


@require_http_methods(["GET", "HEAD", "POST"])
def rename(request: SignedInRequest, slug: str) -> HttpResponse:
    """Change the name of a team. A GET, as after a new sign-in, only shows the team."""
    if request.method == "POST":
        team = selectors.team_by_slug(request.user, slug)
        policies.require_manage_team(request.user, team)
        form = TeamNameForm(request.POST)
        try:
            name = form.cleaned_data["name"] if form.is_valid() else ""
            team = teams.rename(actor=request.user, team=team, name=name)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("The team is now called %(team)s.") % {"team": team.name})
    return redirect("home:team", slug)


@require_http_methods(["GET", "HEAD", "POST"])
def member_shares(request: SignedInRequest, slug: str) -> HttpResponse:
    """Set whether members take turns in the queue. A GET, as after a new sign-in, only shows the team."""
    if request.method == "POST":
        team = selectors.team_by_slug(request.user, slug)
        on = request.POST.get("member_shares") == "on"
        teams.set_member_shares(actor=request.user, team=team, on=on)
        messages.success(
            request,
            _("Members take turns in the queue.") if on else _("Members do not take turns in the queue."),
        )
    return redirect("home:team", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def archive(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show the consequences for the team's workspaces, homes and budgets, then archive the team."""
    team = selectors.team_by_slug(request.user, slug)
    policies.require_manage_team(request.user, team)
    if request.method == "POST":
        teams.archive(actor=request.user, team=team)
        messages.success(request, _("%(team)s is archived.") % {"team": team.name})
        return redirect("home:team", slug)
    question = presenters.archive_question(team, team_contents().contents_of(team))
    back = reverse("home:team", args=[slug])
    return render(request, "confirm.html", {**question, "action": request.path, "back": back})


@require_http_methods(["GET", "HEAD", "POST"])
def restore(request: SignedInRequest, slug: str) -> HttpResponse:
    """Restore an archived team. A GET, as after a new sign-in, only shows the team."""
    if request.method == "POST":
        team = selectors.team_by_slug(request.user, slug)
        teams.restore(actor=request.user, team=team)
        messages.success(
            request, _("%(team)s is restored. Its members can start workspaces.") % {"team": team.name}
        )
    return redirect("home:team", slug)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show the team's contents, then delete the team. For operators, who confirm with its slug."""
    team = selectors.team_by_slug(request.user, slug)
    policies.require_operator(request.user)
    back = reverse("home:team", args=[slug])
    question = presenters.team_deletion_question(team, team_contents().contents_of(team))
    context = {**question, "action": request.path, "back": back}
    if team.archived_at is None:
        context["typed"] = ""
        context["refusals"] = [sentence_of(Reason(AccountCode.TEAM_NOT_ARCHIVED, {"team": team.name}))]
    elif request.method == "POST" and request.POST.get("confirm", "").strip() == team.slug:
        team = teams.delete(actor=request.user, team=team, delete_homes=True)
        if team.deleted_at is not None:
            messages.success(request, _("%(team)s is deleted.") % {"team": team.name})
            return redirect("accounts:teams")
        messages.success(request, _("%(team)s is being deleted.") % {"team": team.name})
        return redirect("home:team", slug)
    elif request.method == "POST":
        context["typed_problem"] = _("Enter the slug of the team.")
    status = 200 if request.method != "POST" else 409 if team.archived_at is None else 400
    return render(request, "confirm.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def network(request: SignedInRequest, slug: str) -> HttpResponse:
    """Show the egress policy to members. Owners may tighten it, operators may change it."""
    team = selectors.team_by_slug(request.user, slug)
    may_manage = policies.may_manage_team(request.user, team)
    initial = {**team_egress.document_of(team), "version": etags.version_of(team)}
    form = TeamEgressForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST":
        policies.require_manage_team(request.user, team)
        if form.is_valid():
            try:
                team_egress.set_egress(
                    actor=request.user,
                    team=team,
                    egress=form.cleaned_data["egress"],
                    egress_allow=form.cleaned_data["egress_allow"],
                    expected=etags.expected_versions(request),
                )
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
            else:
                messages.success(request, _("Saved. Workspaces use this from their next start."))
                return redirect("accounts:team-egress", slug)
    context = {
        "team": team,
        "form": form,
        "may_manage": may_manage,
        "only_closes": not policies.may_loosen_egress(request.user),
        "versions": team_egress.versions(team, at_most=VERSIONS_SHOWN)
        if may_manage or request.user.sees_all
        else [],
    }
    return render(request, "accounts/team_network.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def network_restore(request: SignedInRequest, slug: str, number: int) -> HttpResponse:
    """Restore an earlier version. A GET redirects to the page."""
    team = selectors.team_by_slug(request.user, slug)
    policies.require_manage_team(request.user, team)
    if request.method == "POST":
        try:
            team_egress.restore(actor=request.user, team=team, number=number)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(
                request,
                _("Version %(number)s restored. Workspaces use it from their next start.")
                % {"number": number},
            )
    return redirect("accounts:team-egress", slug)
