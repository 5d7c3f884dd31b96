"""Pages of reclaim policies. Their contexts are documented in templates/reclaim/."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common import etags
from portal.common.errors import NotAllowed, NotFound, PortalError
from portal.common.history import selectors as history
from portal.common.history.models import SubjectKind
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.policies import require_operator
from portal.reclaim import effective, policies, previews
from portal.reclaim import policy_documents as documents
from portal.reclaim import policy_presenters as presenters
from portal.reclaim import policy_services as services
from portal.reclaim.codes import LifetimeCode
from portal.reclaim.models import PolicyScope, ReclaimPolicy
from portal.reclaim.policy_forms import PolicyForm, initial_values, is_team, time_zone_names

MAX_TARGET = 100


def _visible_policies(request: SignedInRequest) -> QuerySet[ReclaimPolicy]:
    rows = ReclaimPolicy.objects.select_related("pool", "template", "flavor", "team")
    return policies.visible_to(request.user, rows)


def _policy(request: SignedInRequest, policy_id: UUID) -> ReclaimPolicy:
    row = _visible_policies(request).filter(pk=policy_id).first()
    if row is None:
        raise NotFound(Reason(LifetimeCode.POLICY_NOT_FOUND))
    return row


def _changeable_policy(request: SignedInRequest, policy_id: UUID) -> ReclaimPolicy:
    row = _policy(request, policy_id)
    policies.require_change(request.user, row.team)
    return row


@require_safe
@never_cache
def listing(request: SignedInRequest) -> HttpResponse:
    """List all visible policies and the site's settings. With `for`, redirect to that policy, if any."""
    target = strip_nul(request.GET.get("for", ""))[:MAX_TARGET]
    policies = list(_visible_policies(request))
    existing = next((row for row in policies if row.target == target), None)
    if existing is not None:
        return redirect(presenters.url_of(existing))
    targets = presenters.targets(request.user)
    context = {
        "target": target if target in presenters.flatten_choices(targets) else "",
        "rows": presenters.rows(policies),
        "settings_row": presenters.settings_row(),
        "may_make": bool(targets),
    }
    return render(request, "reclaim/policies.html", context)


@require_safe
@never_cache
def detail(request: SignedInRequest, policy_id: UUID) -> HttpResponse:
    """Show a policy and its versions."""
    row = _policy(request, policy_id)
    context = {
        "row": row,
        "name": presenters.name_of(row),
        "says": presenters.term_rows(effective.terms_of(row), in_full=True),
        "keeps": policies.may_change(request.user, row),
        "versions": presenters.versions(request.user, row),
    }
    return render(request, "reclaim/policy.html", context)


@require_safe
@never_cache
def preview(request: SignedInRequest) -> HttpResponse:
    """Preview the fields in the query over the last 30 days; changes nothing.

    A part of the form's page, for users who may write such a policy. Shows field errors.
    """
    target = strip_nul(request.GET.get("for", ""))[:MAX_TARGET] or str(PolicyScope.SITE)
    if not is_team(target):
        require_operator(request.user)
    form = PolicyForm(request.GET, of_team=is_team(target))
    context: dict[str, Any] = {"preview": None, "problem": ""}
    if form.is_valid():
        context |= _preview_context(request, target, form)
    else:
        context["problem"] = " ".join(str(text) for texts in form.errors.values() for text in texts)
    return render(request, "reclaim/policy_preview.html", context)


def _preview_context(request: SignedInRequest, target: str, form: PolicyForm) -> dict[str, Any]:
    """Return the preview of a valid form, or the errors."""
    try:
        draft = services.draft(actor=request.user, target=target, values=form.given())
    except NotAllowed:
        raise
    except PortalError as error:
        add_problems(form, error.field_errors, error.sentence)
        problems = [str(text) for texts in form.errors.values() for text in texts]
        return {"preview": None, "problem": " ".join(problems)}
    result = previews.preview(draft)
    return {"preview": result, "text": presenters.preview_text(result), "problem": ""}


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def new(request: SignedInRequest) -> HttpResponse:
    """Show the form of a new policy for the target `for`, and create the policy."""
    targets = presenters.targets(request.user)
    if not targets:
        require_operator(request.user)
    data = request.POST if request.method == "POST" else None
    target = strip_nul((data or request.GET).get("for", ""))[:MAX_TARGET]
    existing = next((row for row in _visible_policies(request) if target and row.target == target), None)
    if existing is not None and data is None:
        return redirect(presenters.url_of(existing))
    initial = {**initial_values(documents.document_of(ReclaimPolicy())), "for": target}
    # Owners can choose only teams, so fields that teams cannot set are omitted from the start.
    of_team = is_team(target) or not request.user.operates
    form = PolicyForm(data, initial=initial, targets=targets, of_team=of_team)
    context: dict[str, Any] = {"form": form, "target": target, "zones": time_zone_names()}
    if data is not None and form.is_valid():
        if "preview" in data:
            context |= _preview_context(request, form.cleaned_data["for"], form)
        else:
            try:
                row = services.create(
                    actor=request.user, target=form.cleaned_data["for"], values=form.given()
                )
                messages.success(request, _("Policy created. It applies within 1 minute."))
                return redirect(presenters.url_of(row))
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
    context["back"] = reverse("reclaim:policies")
    return render(request, "reclaim/policy_form.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def edit(request: SignedInRequest, policy_id: UUID) -> HttpResponse:
    """Show the form that changes a policy, and save it. A concurrent change is reported, not overwritten."""
    row = _changeable_policy(request, policy_id)
    initial = initial_values(documents.document_of(row)) | {"version": etags.version_of(row)}
    data = request.POST if request.method == "POST" else None
    form = PolicyForm(data, initial=initial, of_team=row.team is not None)
    context: dict[str, Any] = {"row": row, "form": form, "target": row.target, "zones": time_zone_names()}
    if data is not None and form.is_valid():
        if "preview" in data:
            context |= _preview_context(request, row.target, form)
        else:
            try:
                services.change(
                    actor=request.user,
                    policy_id=row.pk,
                    values=form.given(),
                    expected=etags.expected_versions(request),
                )
                messages.success(request, _("Policy saved. It applies within 1 minute."))
                return redirect(presenters.url_of(row))
            except PortalError as error:
                add_problems(form, error.field_errors, error.sentence)
    context |= {"back": presenters.url_of(row), "name": presenters.name_of(row)}
    return render(request, "reclaim/policy_form.html", context, status=form_status(form))


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def delete(request: SignedInRequest, policy_id: UUID) -> HttpResponse:
    """Confirm, then delete a policy. The page shows what applies afterwards."""
    row = _changeable_policy(request, policy_id)
    if request.method == "POST":
        try:
            services.delete(actor=request.user, policy_id=row.pk, expected=etags.expected_versions(request))
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect(presenters.url_of(row, "delete"))
        messages.success(request, _("Policy deleted."))
        return redirect("reclaim:policies")
    lines = [f"{label}: {value}" for label, value in presenters.term_rows(effective.terms_of(row))]
    context = {
        "title": _("Delete the policy for %(name)s?") % {"name": presenters.name_of(row)},
        "loses": [
            *lines,
            _("this policy; the next more general policy or the site settings apply within 1 minute"),
        ],
        "stays": [_("running workspaces; notices of this policy are cancelled")],
        "yes": _("Delete"),
        "action": request.path,
        "back": presenters.url_of(row),
    }
    return render(request, "confirm.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def restore(request: SignedInRequest, policy_id: UUID, number: int) -> HttpResponse:
    """Confirm, then restore a version. The page shows the changes."""
    row = _changeable_policy(request, policy_id)
    revision = history.revision(SubjectKind.RECLAIM, row.pk, number)
    if request.method == "POST":
        try:
            services.restore(
                actor=request.user, policy_id=row.pk, number=number, expected=etags.expected_versions(request)
            )
        except PortalError as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Version %(number)s of the policy restored.") % {"number": number})
        return redirect(presenters.url_of(row))
    differences = presenters.format_differences(
        history.differences(documents.document_of(row), revision.data)
    )
    changes = [
        f"{difference.label}: {difference.before[:200]} → {difference.after[:200]}"
        for difference in differences
    ]
    context = {
        "title": _("Restore version %(number)s of the policy for %(name)s?")
        % {"number": number, "name": presenters.name_of(row)},
        "loses": changes or [_("nothing; the policy is already like this")],
        "stays": [_("the current settings, as a version")],
        "yes": _("Restore"),
        "action": request.path,
        "back": presenters.url_of(row),
    }
    return render(request, "confirm.html", context)
