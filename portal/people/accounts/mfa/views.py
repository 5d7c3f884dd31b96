"""Pages of one's own second factors. See templates/accounts/two_step/ for the contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.errors import InvalidInput, NotFound, PortalError
from portal.common.htmx import local_path
from portal.common.reasons.reason import Reason
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status
from portal.people.accounts.mfa import factors, passkeys, services
from portal.people.accounts.mfa.codes import MfaCode
from portal.people.accounts.mfa.forms import AppForm, PasskeyNameForm
from portal.people.accounts.mfa.passkeys import ChallengePurpose
from portal.people.accounts.mfa.proof import (
    ProofTooOld,
    confirm,
    confirmation_page,
    is_fresh,
    require_fresh_proof,
)
from portal.people.accounts.mfa.required import open_before_setup

SECRET = "berth_app_secret"  # noqa: S105


@open_before_setup
@require_safe
@never_cache
def two_step(request: SignedInRequest) -> HttpResponse:
    """Show the factors that are set up and those available."""
    context = {
        "overview": factors.overview_of(request.user),
        "demanded": request.user.must_set_up_mfa,
        "trusted_days": settings.BERTH_TRUSTED_DEVICE_DAYS,
    }
    return render(request, "accounts/two_step/overview.html", context)


@open_before_setup
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof(reading=True)
def app(request: SignedInRequest) -> HttpResponse:
    """Set up an authenticator app. Its secret stays in the session until a code confirms it."""
    if factors.overview_of(request.user).app_since is not None:
        return redirect("accounts:two-step")
    if request.method != "POST" or SECRET not in request.session:
        request.session[SECRET] = factors.new_secret()
    secret = request.session[SECRET]
    form = AppForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            result = services.set_up_app(
                request, actor=request.user, secret=secret, code=form.cleaned_data["code"]
            )
        except InvalidInput as error:
            add_problems(form, error.field_errors, error.message)
        else:
            request.session.pop(SECRET, None)
            return _set_up(request, result, _("Authenticator app set up."))
    url = factors.app_url(request.user, secret)
    context = {"form": form, "secret": _grouped(secret), "url": url, "image": factors.qr_image(url)}
    return render(request, "accounts/two_step/app.html", context, status=form_status(form))


@open_before_setup
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def app_remove(request: SignedInRequest) -> HttpResponse:
    """Ask for confirmation, then remove the app."""
    if request.method != "POST":
        context = {
            "title": _("Remove the authenticator app?"),
            "loses": [_("sign-in with codes from the app")],
            "stays": [_("passkeys"), _("the password")],
            "yes": _("Remove app"),
        }
        return _question(request, context)
    return _remove(request, lambda: services.remove_app(actor=request.user), _("Authenticator app removed."))


@open_before_setup
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def codes(request: SignedInRequest) -> HttpResponse:
    """Create new recovery codes and show them once."""
    if request.method != "POST":
        context = {
            "title": _("Create new recovery codes?"),
            "loses": [_("your current recovery codes")],
            "stays": [_("the app and passkeys")],
            "yes": _("Create new codes"),
        }
        return _question(request, context)
    try:
        codes = services.new_codes(actor=request.user)
    except PortalError as error:
        messages.error(request, error.sentence)
        return redirect("accounts:two-step")
    return _show_codes(request, codes)


@open_before_setup
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def codes_download(request: SignedInRequest) -> HttpResponse:
    """Return the posted codes as a text file. Nothing is looked up."""
    if request.method != "POST":
        return redirect("accounts:two-step")
    code_lines = [line for line in request.POST.get("codes", "").split() if line.isdigit()][:20]
    lines = [_("Berth recovery codes for %(name)s") % {"name": request.user.username}, "", *code_lines, ""]
    answer = HttpResponse("\n".join(lines), content_type="text/plain; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="berth-recovery-codes.txt"'
    return answer


@open_before_setup
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof(reading=True)
def passkey_add(request: SignedInRequest) -> HttpResponse:
    """Add a passkey, created by the page's script."""
    count = len(factors.overview_of(request.user).passkeys)
    form = PasskeyNameForm(request.POST or None, initial={"name": _suggested_name(count)})
    problem = ""
    if request.method == "POST" and form.is_valid():
        try:
            result = services.add_passkey(
                request,
                actor=request.user,
                name=form.cleaned_data["name"],
                answer=request.POST.get("credential", ""),
            )
        except PortalError as error:
            problem = error.sentence
        else:
            return _set_up(request, result, _("Passkey added."))
    context = {"form": form, "problem": problem}
    status = 400 if problem else form_status(form)
    return render(request, "accounts/two_step/passkey_add.html", context, status=status)


@open_before_setup
@require_safe
@never_cache
def passkey_options(request: SignedInRequest) -> JsonResponse:
    """Return passkey options: to create one (`?for=add`) or to confirm the identity (`?for=confirm`)."""
    match request.GET.get("for"):
        case "add":
            if not is_fresh(request):
                return JsonResponse(
                    {"problem": ProofTooOld(Reason(MfaCode.CONFIRM_FIRST)).sentence}, status=403
                )
            return JsonResponse(passkeys.options_to_add(request, request.user))
        case "confirm":
            return JsonResponse(passkeys.options_to_use(request, ChallengePurpose.CONFIRM, user=request.user))
        case _:
            raise NotFound(Reason(MfaCode.NO_SUCH_PASSKEY))


@open_before_setup
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def passkey(request: SignedInRequest, passkey_id: int) -> HttpResponse:
    """Rename a passkey. A GET redirects to the list."""
    if request.method == "POST":
        try:
            services.rename_passkey(
                actor=request.user, passkey_id=passkey_id, name=request.POST.get("name", "")
            )
        except InvalidInput as error:
            messages.error(request, error.sentence)
        else:
            messages.success(request, _("Passkey renamed."))
    return redirect("accounts:two-step")


@open_before_setup
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def passkey_remove(request: SignedInRequest, passkey_id: int) -> HttpResponse:
    """Ask for confirmation, then remove a passkey."""
    passkey = {row.id: row for row in factors.overview_of(request.user).passkeys}.get(passkey_id)
    if passkey is None:
        raise NotFound(Reason(MfaCode.NO_SUCH_PASSKEY))
    if request.method != "POST":
        context = {
            "title": _("Remove the passkey “%(name)s”?") % {"name": passkey.name},
            "loses": [_("sign-in with this passkey; delete it on its device too")],
            "stays": [_("other passkeys and the app"), _("the password")],
            "yes": _("Remove passkey"),
        }
        return _question(request, context)
    return _remove(
        request,
        lambda: services.remove_passkey(actor=request.user, passkey_id=passkey_id),
        _("Passkey removed."),
    )


@open_before_setup
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def confirm_identity(request: SignedInRequest) -> HttpResponse:
    """Confirm the identity for programs that use the session, then redirect to `next`."""
    next_url = local_path(request.POST.get("next") or request.GET.get("next", ""))
    problem = ""
    if request.method == "POST":
        try:
            confirm(request)
        except InvalidInput as error:
            problem = error.sentence
        else:
            return redirect(next_url)
    return confirmation_page(request, problem=problem, action=request.get_full_path())


def _set_up(request: SignedInRequest, result: services.FactorSetup, message: str) -> HttpResponse:
    messages.success(request, message)
    return _show_codes(request, result.codes) if result.codes else redirect("accounts:two-step")


def _show_codes(request: HttpRequest, codes: list[str]) -> HttpResponse:
    return render(request, "accounts/two_step/codes.html", {"codes": codes})


def _question(request: HttpRequest, context: Mapping[str, object]) -> HttpResponse:
    return render(
        request,
        "confirm.html",
        {**context, "action": request.path, "back": reverse("accounts:two-step")},
    )


def _remove(request: HttpRequest, remove: Callable[[], None], message: str) -> HttpResponse:
    try:
        remove()
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, message)
    return redirect("accounts:two-step")


def _suggested_name(count: int) -> str:
    return _("Passkey") if not count else _("Passkey %(number)d") % {"number": count + 1}


def _grouped(secret: str) -> str:
    return " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
