"""Pages of user packages; templates are in templates/workspaces/."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.catalog.environments import policies as environment_policies
from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.models import Team, User
from portal.workspaces import dispatch, own_packages, policies, selectors
from portal.workspaces.lifecycle import State
from portal.workspaces.models import Workspace
from provisioning.environment_messages import MAX_SOURCE

NAMED = 5


class SaveForm(forms.Form):
    """Form for a new environment with the user's packages."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    description = forms.CharField(label=gettext_lazy("Description"), max_length=200, required=False)
    team = forms.ChoiceField(label=gettext_lazy("Available to"), required=False)
    source = forms.CharField(
        label=gettext_lazy("Packages"),
        strip=False,
        max_length=MAX_SOURCE,
        help_text=gettext_lazy("Your packages with their versions. Edit the list as needed."),
        widget=forms.Textarea(
            attrs={"rows": 12, "spellcheck": "false", "autocapitalize": "none", "class": "mono"}
        ),
    )

    def __init__(self, *args: Any, actor: User, team: Team, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["team"]
        own = [(team.slug, team.name)] if environment_policies.may_manage(actor, team) else []
        everybody = [("", _("Everyone"))] if environment_policies.may_manage(actor, None) else []
        field.choices = [*own, *everybody]


def _home_of(request: SignedInRequest, workspace_id: UUID) -> Workspace:
    workspace = selectors.workspace_by_id(request.user, workspace_id)
    policies.require_home(request.user, workspace)
    return workspace


def _may_save(actor: User, workspace: Workspace) -> bool:
    return environment_policies.may_manage(actor, workspace.team)


def _redirect_to_packages(workspace_id: UUID) -> HttpResponse:
    return redirect("workspaces:packages", workspace_id)


@require_safe
@never_cache
def packages(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """List the user's packages, from the node."""
    workspace = _home_of(request, workspace_id)
    own, problem = own_packages.OwnPackages(), ""
    try:
        own = own_packages.read(actor=request.user, workspace=workspace)
    except PortalError as error:
        problem = error.sentence
    version = workspace.environment_version
    context = {
        "workspace": workspace,
        "environment": version.environment if version is not None else None,
        "own": own,
        "problem": problem,
        "sharing": [other.name for other in own_packages.sharing(workspace)[:NAMED]],
        "reset_waits": own_packages.reset_waits(workspace),
        "resetting": dispatch.resets_packages(workspace),
        "over": workspace.state in {State.TERMINATED, State.TERMINATING},
        "may_save": _may_save(request.user, workspace),
        "requirements": own_packages.requirements(workspace, own) if own.packages else "",
    }
    return render(request, "workspaces/packages.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def reset(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Confirm, then remove the packages at the next start."""
    workspace = _home_of(request, workspace_id)
    if request.method == "POST":
        try:
            own_packages.reset(actor=request.user, workspace_id=workspace_id)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(
                request, _("The next start removes your extra packages. You can cancel this until then.")
            )
        return _redirect_to_packages(workspace_id)
    return render(request, "confirm.html", _reset_question(request, workspace))


def _reset_question(request: SignedInRequest, workspace: Workspace) -> dict[str, Any]:
    try:
        installed = own_packages.read(actor=request.user, workspace=workspace).packages
    except PortalError:
        loses = [_("all packages you installed in addition to the environment")]
    else:
        loses = [f"{package.name} {package.version}" for package in installed] or [
            _("nothing; you have no extra packages")
        ]
    others = [other.name for other in own_packages.sharing(workspace)[:NAMED]]
    if others:
        loses.append(_("the same packages in %(names)s") % {"names": ", ".join(others)})
    return {
        "title": _("Reset your packages at the next start of %(name)s?") % {"name": workspace.name},
        "loses": loses,
        "stays": [_("the environment"), _("your notebooks and all other files")],
        "yes": _("Reset packages"),
        "action": request.path,
        "back": reverse("workspaces:packages", args=[workspace.pk]),
    }


@require_http_methods(["GET", "HEAD", "POST"])
def cancel_reset(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Cancel a reset. A GET only shows the list."""
    _home_of(request, workspace_id)
    if request.method == "POST":
        try:
            own_packages.cancel_reset(actor=request.user, workspace_id=workspace_id)
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Your packages are kept."))
    return _redirect_to_packages(workspace_id)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def save(request: SignedInRequest, workspace_id: UUID) -> HttpResponse:
    """Create an environment from the user's packages."""
    workspace = _home_of(request, workspace_id)
    if not _may_save(request.user, workspace):
        environment_policies.require_manage(request.user, workspace.team)
    if request.method == "POST":
        form = SaveForm(request.POST, actor=request.user, team=workspace.team)
    else:
        try:
            own = own_packages.read(actor=request.user, workspace=workspace)
        except PortalError as error:
            messages.error(request, error.sentence)
            return _redirect_to_packages(workspace_id)
        if not own.packages:
            return _redirect_to_packages(workspace_id)
        initial = {"source": own_packages.requirements(workspace, own), "team": workspace.team.slug}
        form = SaveForm(initial=initial, actor=request.user, team=workspace.team)
    if form.is_valid():
        cleaned = dict(form.cleaned_data)
        team = workspace.team if cleaned.pop("team") else None
        try:
            own = own_packages.read(actor=request.user, workspace=workspace)
            environment = own_packages.save(
                actor=request.user, workspace=workspace, own=own, team=team, **cleaned
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Environment created. Build queued."))
            return redirect("environments:detail", environment.slug)
    context = {"workspace": workspace, "form": form}
    return render(request, "workspaces/save_packages.html", context, status=form_status(form))
