"""Actions on unused homes, and the page of archived homes; see templates/reclaim/."""

from __future__ import annotations

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.common.errors import InvalidInput, NotAllowed, NotFound, PortalError, StateConflict
from portal.common.reasons.reason import Reason
from portal.common.texts import strip_nul
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.mfa.proof import require_fresh_proof
from portal.people.accounts.policies import require_administrator, require_see_all
from portal.reclaim import home_presenters as presenters
from portal.reclaim import homes
from portal.workspaces.homes import away
from portal.workspaces.homes.codes import ArchiveCode
from portal.workspaces.models import HomePlace

ROWS_PER_PAGE = 50


def _homes_url(request: SignedInRequest, place: HomePlace) -> str:
    return reverse("workspaces:homes") + ("" if place.owner_id == request.user.pk else "?all=1")


@require_POST
def keep_home(request: SignedInRequest, home_id: int) -> HttpResponse:
    """Keep a home."""
    place = homes.home(request.user, home_id)
    try:
        homes.keep_home(actor=request.user, place_id=home_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Home folder kept. The unused time starts again."))
    return redirect(_homes_url(request, place))


@require_POST
def restore(request: SignedInRequest, home_id: int) -> HttpResponse:
    """Restore a home from its archive."""
    place = homes.home(request.user, home_id)
    try:
        homes.restore(actor=request.user, place_id=home_id)
    except (NotAllowed, NotFound):
        raise
    except PortalError as error:
        messages.error(request, error.sentence)
    else:
        messages.success(request, _("Restoring the home folder. New workspaces wait until this is complete."))
    return redirect(_homes_url(request, place))


@require_safe
@never_cache
def archived(request: SignedInRequest) -> HttpResponse:
    """List all archived homes, longest archived first; for operators and auditors."""
    require_see_all(request.user)
    rows = homes.archivable_homes().filter(away__isnull=False).order_by("-stay__unused_s", "pk")
    page = Paginator(rows, ROWS_PER_PAGE).get_page(request.GET.get("page"))
    lines = presenters.lines(request.user, page.object_list)
    context = {
        "page": page,
        "rows": [lines[place.pk] for place in page.object_list if place.pk in lines],
        "may_delete": request.user.administers,
    }
    return render(request, "reclaim/archived_homes.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@require_fresh_proof
def delete(request: SignedInRequest, home_id: int) -> HttpResponse:
    """Ask for the home's name to confirm, then delete an archived home permanently."""
    require_administrator(request.user)
    place = homes.home(request.user, home_id)
    archive = away.archive_holding_home(place)
    if archive is None or archive.away_at is None:
        raise StateConflict(Reason(ArchiveCode.NOT_READY), code=ArchiveCode.NOT_READY)
    back = reverse("reclaim:archived-homes")
    problem = ""
    if request.method == "POST":
        try:
            homes.delete(
                actor=request.user,
                place_id=home_id,
                confirm=request.POST.get("confirm", ""),
                reason=strip_nul(request.POST.get("note", "")),
            )
        except InvalidInput as error:
            problem = error.sentence
        except (NotAllowed, NotFound):
            raise
        except PortalError as error:
            messages.error(request, error.sentence)
            return redirect(back)
        else:
            messages.success(request, _("%(home)s is being deleted.") % {"home": homes.name_of(place)})
            return redirect(back)
    context = {
        **presenters.delete_question(place, archive),
        "action": request.path,
        "back": back,
        "typed_problem": problem,
    }
    return render(request, "confirm.html", context, status=400 if problem else 200)
