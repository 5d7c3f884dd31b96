"""The page that creates a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from django_htmx.http import replace_url

from portal.catalog import selectors as catalog
from portal.catalog.repositories.rules import Source
from portal.common.errors import InvalidInput, PortalError, StateConflict
from portal.common.htmx import requests_element
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import parse_hours, strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import selectors as accounts
from portal.web.home.presenters import new_workspace
from portal.web.home.presenters.later_flavors import FIELDS, LaterFlavors, fields
from portal.web.home.presenters.options import Options, has_problem, options_summary
from portal.workspaces import selectors, services, software
from portal.workspaces.models import Workspace
from portal.workspaces.order import MAX_EXPECTED_S, MIN_EXPECTED_S, WorkspaceOrder, require_in_range
from portal.workspaces.secrets import presenters as secrets
from portal.workspaces.secrets.effective import available_secrets
from portal.workspaces.views import redirect_to_workspace

MAX_NONCE_LENGTH = 64
TEMPLATE_DEFAULT = "-"
"""Value for the template's own environment, because an empty string means that nothing is chosen."""
GIT_MAX = 1000
"""Maximum length of a field's value. Services report longer values as errors."""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Show and handle the form of a new workspace. The form reloads verdicts on each change.

    The choice is part of the URL. If the form at this URL has created a workspace, redirects to it.
    """
    data = request.POST if request.method == "POST" else request.GET
    once = strip_nul(data.get("once", ""))[:MAX_NONCE_LENGTH]
    if once and request.method != "POST" and not request.htmx:
        workspace = selectors.workspace_created_with(request.user, _key(once))
        if workspace is not None:
            return redirect_to_workspace(workspace)
    chosen = {name: data.get(name, "") for name in ("template", "flavor", "team")}
    error: PortalError | None = None
    if request.method == "POST" and "check" not in data:
        try:
            if "ask" in data:
                return _redirect_to_request(request, chosen, _name_to_start(data))
            return _create(request, chosen, _name_to_start(data), once)
        except PortalError as refused:
            error = refused
    environment = _environment(data)
    later = LaterFlavors.submitted(data)
    choice = new_workspace.choice(
        request.user,
        **chosen,
        expected_s=_seconds_if_valid(data.get("hours", "")),
        find=strip_nul(data.get("find", ""))[:100],
        environment=environment,
        later=later,
    )
    suggested = ""
    if choice.team and choice.template:
        suggested = services.free_name(actor=request.user, team=choice.team, template=choice.template)
    name = data.get("name", "")
    rename = not _name_to_start(data)
    hours, chosen_secrets = strip_nul(data.get("hours", ""))[:6], _selected_secrets(request, choice.last)
    offered_secrets = available_secrets(request.user, choice.team, choice.template)
    selected = Options(
        hours=hours if _seconds_if_valid(hours) is not None else "",
        later=later,
        checkpointed="checkpointed" in data,
        # Scripts do not send the repository URL, because it may contain a password and would be logged.
        repository=bool(_git_fields(data)["url"] or data.get("git_url_set")),
        secrets=chosen_secrets,
    )
    context = {
        "choice": choice,
        "name": suggested if rename else name,
        "suggested": suggested,
        "hours": hours,
        "checkpointed": "checkpointed" in data,
        "start_without_gpu": "start_without_gpu" in data,
        "later_fields": fields(later, [card.flavor for card in choice.flavors], choice.flavor),
        "start_within": later.minutes,
        "move_home": "move_home" in data,
        "secrets": secrets.choices(offered_secrets, chosen_secrets),
        "options": options_summary(choice, selected),
        "git": new_workspace.git_fields(choice, _git_fields(data)),
        "git_secrets": sorted(offered_secrets.by_name),
        "once": once or uuid4().hex,
        # The suggested environment follows the template until the user chooses another one.
        "kept_environment": f"{choice.environment or TEMPLATE_DEFAULT}:{choice.template.slug}"
        if environment is None and choice.template is not None
        else "",
    }
    if requests_element(request, "choice"):
        part = render(request, "home/new.html#choice", context | {"oob": True, "rename": rename})
        # Preserves the choice in reloads, bookmarks and the browser history.
        params = {**chosen, "environment": environment, "name": "" if rename else name}
        params |= {field: data.get(field, "") for field in (*FIELDS, "start_within")}
        return replace_url(part, f"{request.path}?{urlencode({k: v for k, v in params.items() if v})}")
    problems = error.field_errors if error else {}
    context |= {
        "teams": choice.teams,
        "name_problems": problems.get("name", []),
        "secret_problems": problems.get("secrets", []),
        "later_problems": [*problems.get("flavors", []), *problems.get("start_within_min", [])],
        "git_problems": {name: problems.get(f"git.{name}", []) for name in ("url", "ref", "secret")},
        "hours_problems": [*problems.get("hours", []), *problems.get("lifetime_hours", [])],
        "options_open": has_problem(problems),
        "error": error,
    }
    return render(request, "home/new.html", context, status=error.status if error else 200)


def _name_to_start(data: Mapping[str, str]) -> str:
    """Return the submitted name, or an empty string if the user has not changed the suggestion.

    The suggestion may be outdated if the user submits the form right after choosing another template.
    """
    name = data.get("name", "")
    return "" if name == data.get("suggested", "") else name


def _environment(data: Mapping[str, str]) -> str | None:
    """Return the environment that the user chose (empty for the template's own), or `None`."""
    if "environment" not in data:
        return None
    slug = strip_nul(data["environment"])
    return None if _is_suggestion(data) else slug


def _is_suggestion(data: Mapping[str, str]) -> bool:
    """Return whether the submitted environment is the form's suggestion."""
    previous = data.get("kept_environment", "").partition(":")[0]
    return bool(previous) and previous == (strip_nul(data.get("environment", "")) or TEMPLATE_DEFAULT)


def _environment_to_start(data: Mapping[str, str]) -> str:
    """Return the environment to start with. Ignores a suggestion for another template."""
    kept_for = data.get("kept_environment", "").partition(":")[2]
    if _is_suggestion(data) and kept_for != data.get("template", ""):
        return ""
    return strip_nul(data.get("environment", ""))


def _selected_secrets(request: SignedInRequest, last: Workspace | None) -> list[str]:
    """Return the selected secrets; initially those of the last workspace."""
    if request.method == "POST" or request.htmx or "secrets" in request.GET:
        data = request.POST if request.method == "POST" else request.GET
        return [strip_nul(name) for name in data.getlist("secrets")]
    return list(last.secrets) if last is not None else []


def _git_fields(data: Any) -> Source:
    """Return the repository fields of the form."""
    fields = {
        name: strip_nul(data.get(f"git_{name}", "")).strip()[:GIT_MAX] for name in ("url", "ref", "secret")
    }
    return Source(url=fields["url"], ref=fields["ref"], secret=fields["secret"])


def _git(data: Any) -> Source | None:
    """Return the requested repository, or `None` for the template's own."""
    fields = _git_fields(data)
    return fields if any(fields.values()) else None


def _key(once: str) -> str:
    """Return the idempotency key of a form, which differs from the keys of API clients."""
    return f"form:{once}"


def _create(request: SignedInRequest, chosen: dict[str, str], name: str, once: str) -> HttpResponse:
    """Create the workspace, and redirect to its page.

    If a form is submitted again, redirects to the existing workspace; a changed form creates another one.
    """
    for field in ("template", "flavor", "team"):
        if not chosen[field]:
            raise InvalidInput(Reason(CommonCode.FIRST_CHOICE_MISSING, {"field": field}))
    later = LaterFlavors.submitted(request.POST)
    order = WorkspaceOrder(
        team=accounts.team_by_slug(request.user, chosen["team"]),
        template=catalog.template_by_slug(request.user, chosen["template"]),
        flavor=catalog.flavor_by_slug(request.user, chosen["flavor"]),
        fallbacks=[catalog.flavor_by_slug(request.user, slug) for slug in later.slugs],
        start_within_s=later.start_within_s,
        name=name,
        environment=software.find_environment(request.user, _environment_to_start(request.POST)),
        lifetime_s=parse_hours(request.POST.get("hours", "")),
        # An unchecked box means no choice, so the template and flavor decide.
        checkpointed=True if "checkpointed" in request.POST else None,
        secrets=_selected_secrets(request, None),
        git=_git(request.POST),
        start_without_gpu="start_without_gpu" in request.POST,
        move_home="move_home" in request.POST,
    )
    try:
        creation = services.create(
            actor=request.user, order=order, idempotency_key=_key(once) if once else ""
        )
    except StateConflict as conflict:
        if conflict.code != "idempotency_key_reused":
            raise
        creation = services.create(actor=request.user, order=order)
    return redirect_to_workspace(creation.workspace, opening=True)


def _seconds_if_valid(hours: str) -> int | None:
    """Return the hours in seconds for the live verdict, or `None` if invalid."""
    try:
        seconds = parse_hours(hours)
    except InvalidInput:
        return None
    return seconds if seconds is not None and MIN_EXPECTED_S <= seconds <= MAX_EXPECTED_S else None


def _redirect_to_request(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    """Redirect to the quota request form, which also creates the workspace that waits for the quota.

    Raises `InvalidInput` for invalid hours.
    """
    hours = strip_nul(request.POST.get("hours", ""))
    expected_s = parse_hours(hours)
    require_in_range(expected_s)
    later = LaterFlavors.submitted(request.POST)
    verdict = new_workspace.choice(request.user, **chosen, expected_s=expected_s, later=later).verdict
    query: dict[str, Any] = {**chosen, "name": name, "hours": hours}
    if environment := _environment_to_start(request.POST):
        query["environment"] = environment
    if "checkpointed" in request.POST:
        query["checkpointed"] = "on"
    if secret_names := _selected_secrets(request, None):
        query["secrets"] = " ".join(secret_names)
    if later.slugs:
        query |= {"fallbacks": " ".join(later.slugs), "start_within_s": later.start_within_s}
    query |= {name: "on" for name in ("start_without_gpu", "move_home") if name in request.POST}
    query |= {f"git_{name}": value for name, value in _git_fields(request.POST).items() if value}
    if verdict is not None and verdict.quota_request is not None:
        query |= {
            "kind": verdict.quota_request.kind,
            "resource": verdict.quota_request.resource,
            "amount": str(verdict.quota_request.amount),
        }
    return redirect(f"{reverse('quota_requests:ask')}?{urlencode(query)}")
