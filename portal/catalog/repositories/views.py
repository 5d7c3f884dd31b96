"""The page of a user's dotfiles."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from portal.catalog.repositories import selectors, services
from portal.catalog.repositories.forms import DotfilesForm
from portal.common import etags
from portal.common.errors import PortalError
from portal.common.typed_requests import SignedInRequest
from portal.people.accounts.forms import add_problems, form_status


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def dotfiles(request: SignedInRequest) -> HttpResponse:
    """Show and set the user's dotfiles."""
    row = selectors.dotfiles_of(request.user)
    initial = {"url": row.url, "ref": row.ref, "secret": row.secret} if row is not None else {}
    form = DotfilesForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            services.set_dotfiles(
                actor=request.user, expected=etags.expected_versions(request), **form.cleaned_data
            )
        except PortalError as error:
            add_problems(form, error.field_errors, error.sentence)
        else:
            messages.success(request, _("Dotfiles saved. Workspaces clone them at their next start."))
            return redirect(request.path)
    context = {"form": form, "row": row}
    return render(request, "repositories/dotfiles.html", context, status=form_status(form))
