"""The page that asks for a new workspace."""

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
from portal.common.htmx import wants
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.common.texts import parse_hours, strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts import selectors as accounts
from portal.web.home.presenters import new_workspace
from portal.workspaces import selectors, services, software
from portal.workspaces.order import MAX_EXPECTED_S, MIN_EXPECTED_S, WorkspaceOrder, require_in_range
from portal.workspaces.secrets import presenters as secrets
from portal.workspaces.views import to_workspace

ONCE_MAX = 64
AS_TEMPLATE = "-"
"""Stands for the template's own environment, where an empty word would stand for nothing."""
GIT_MAX = 1000
"""Of a field; the rules say what is too long."""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Choose what, how big and for whom; the form asks for verdicts as it changes, and starts.

    The choice stands in the address. An address whose form has made a workspace leads to that.
    """
    data = request.POST if request.method == "POST" else request.GET
    once = strip_nul(data.get("once", ""))[:ONCE_MAX]
    if once and request.method != "POST" and not request.htmx:
        made = selectors.made_with(request.user, _key(once))
        if made is not None:
            return to_workspace(made)
    chosen = {name: data.get(name, "") for name in ("template", "flavor", "team")}
    error: PortalError | None = None
    if request.method == "POST" and "check" not in data:
        try:
            if "ask" in data:
                return _to_ask(request, chosen, _name_to_start(data))
            return _create(request, chosen, _name_to_start(data), once)
        except PortalError as refused:
            error = refused
    environment = _environment(data)
    choice = new_workspace.choice(
        request.user,
        **chosen,
        expected_s=_seconds_if_valid(data.get("hours", "")),
        find=strip_nul(data.get("find", ""))[:100],
        environment=environment,
    )
    suggested = ""
    if choice.team and choice.template:
        suggested = services.free_name(actor=request.user, team=choice.team, template=choice.template)
    name = data.get("name", "")
    rename = not _name_to_start(data)
    context = {
        "choice": choice,
        "name": suggested if rename else name,
        "suggested": suggested,
        "hours": strip_nul(data.get("hours", ""))[:6],
        "checkpointed": "checkpointed" in data,
        "start_without_gpu": "start_without_gpu" in data,
        "secrets": secrets.choices(request.user, choice.team, choice.template, _named(request)),
        "git": new_workspace.git_fields(choice.template, _git_fields(data)),
        "git_secrets": secrets.names_offered(request.user, choice.team, choice.template),
        "once": once or uuid4().hex,
        # What stands there by itself follows the choice of template, until the person chooses another one.
        "kept_environment": f"{choice.environment or AS_TEMPLATE}:{choice.template.slug}"
        if environment is None and choice.template is not None
        else "",
    }
    if wants(request, "choice"):
        part = render(request, "home/new.html#choice", context | {"oob": True, "rename": rename})
        # A reload, a bookmark and the way back show the same choice.
        kept = {**chosen, "environment": environment, "name": "" if rename else name}
        return replace_url(part, f"{request.path}?{urlencode({k: v for k, v in kept.items() if v})}")
    problems = error.field_errors if error else {}
    context |= {
        "teams": accounts.chargeable_teams(request.user),
        "name_problems": problems.get("name", []),
        "secret_problems": problems.get("secrets", []),
        "git_problems": {name: problems.get(f"git.{name}", []) for name in ("url", "ref", "secret")},
        "error": error,
    }
    return render(request, "home/new.html", context, status=error.status if error else 200)


def _name_to_start(data: Mapping[str, str]) -> str:
    """The name that a form means: one that the person has not touched is none, and follows the choice.

    So does a start in the same instant as another template is chosen, before the form has followed.
    """
    name = data.get("name", "")
    return "" if name == data.get("suggested", "") else name


def _environment(data: Mapping[str, str]) -> str | None:
    """The environment that somebody has chosen, empty for the template's own; None where nobody has yet."""
    if "environment" not in data:
        return None
    said = strip_nul(data["environment"])
    return None if _by_itself(data) else said


def _by_itself(data: Mapping[str, str]) -> bool:
    """Whether the environment that is sent is the one that the form has put there, not the person."""
    kept = data.get("kept_environment", "").partition(":")[0]
    return bool(kept) and kept == (strip_nul(data.get("environment", "")) or AS_TEMPLATE)


def _environment_to_start(data: Mapping[str, str]) -> str:
    """The environment that a form means: one that stood there by itself for another template is none."""
    of = data.get("kept_environment", "").partition(":")[2]
    if _by_itself(data) and of != data.get("template", ""):
        return ""
    return strip_nul(data.get("environment", ""))


def _named(request: SignedInRequest) -> list[str]:
    """The secrets whose boxes are ticked; at first those of the last request."""
    if request.method == "POST" or request.htmx or "secrets" in request.GET:
        data = request.POST if request.method == "POST" else request.GET
        return [strip_nul(name) for name in data.getlist("secrets")]
    last = selectors.last_choice(request.user)
    return list(last.secrets) if last is not None else []


def _git_fields(data: Any) -> Source:
    """The repository as the form has it."""
    found = {
        name: strip_nul(data.get(f"git_{name}", "")).strip()[:GIT_MAX] for name in ("url", "ref", "secret")
    }
    return Source(url=found["url"], ref=found["ref"], secret=found["secret"])


def _git(data: Any) -> Source | None:
    """The repository that was asked for, None where nothing was written: then the template decides."""
    fields = _git_fields(data)
    return fields if any(fields.values()) else None


def _key(once: str) -> str:
    """The idempotency key of a form; a program's own keys cannot be the same."""
    return f"form:{once}"


def _create(request: SignedInRequest, chosen: dict[str, str], name: str, once: str) -> HttpResponse:
    """Start it, and go to its page; a form sent again leads to what it made, a changed one makes another."""
    for field in ("template", "flavor", "team"):
        if not chosen[field]:
            raise InvalidInput(Reason(CommonCode.FIRST_CHOICE_MISSING, {"field": field}))
    order = WorkspaceOrder(
        team=accounts.team_by_slug(request.user, chosen["team"]),
        template=catalog.template_by_slug(request.user, chosen["template"]),
        flavor=catalog.flavor_by_slug(request.user, chosen["flavor"]),
        name=name,
        environment=software.named(request.user, _environment_to_start(request.POST)),
        lifetime_s=parse_hours(request.POST.get("hours", "")),
        # A box that was not ticked says nothing: then the template and flavor decide.
        checkpointed=True if "checkpointed" in request.POST else None,
        secrets=_named(request),
        git=_git(request.POST),
        start_without_gpu="start_without_gpu" in request.POST,
    )
    try:
        creation = services.create(
            actor=request.user, order=order, idempotency_key=_key(once) if once else ""
        )
    except StateConflict as conflict:
        if conflict.code != "idempotency_key_reused":
            raise
        creation = services.create(actor=request.user, order=order)
    return to_workspace(creation.workspace, opening=True)


def _seconds_if_valid(hours: str) -> int | None:
    """The same for a verdict, which is given while somebody still types: None for what cannot be read."""
    try:
        found = parse_hours(hours)
    except InvalidInput:
        return None
    return found if found is not None and MIN_EXPECTED_S <= found <= MAX_EXPECTED_S else None


def _to_ask(request: SignedInRequest, chosen: dict[str, str], name: str) -> HttpResponse:
    """On to the form that asks for what is missing; it makes the workspace, which waits for the answer.

    Raises `InvalidInput` for hours that are none.
    """
    hours = strip_nul(request.POST.get("hours", ""))
    expected_s = parse_hours(hours)
    require_in_range(expected_s)
    verdict = new_workspace.choice(request.user, **chosen, expected_s=expected_s).verdict
    query: dict[str, Any] = {**chosen, "name": name, "hours": hours}
    if environment := _environment_to_start(request.POST):
        query["environment"] = environment
    if "checkpointed" in request.POST:
        query["checkpointed"] = "on"
    if named := _named(request):
        query["secrets"] = " ".join(named)
    query |= {f"git_{name}": value for name, value in _git_fields(request.POST).items() if value}
    if verdict is not None and verdict.ask is not None:
        query |= {
            "kind": verdict.ask.kind,
            "resource": verdict.ask.resource,
            "amount": str(verdict.ask.amount),
        }
    return redirect(f"{reverse('quota_requests:ask')}?{urlencode(query)}")
