"""Services that change users' dotfiles."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.catalog.repositories.models import UserDotfiles
from portal.catalog.repositories.rules import problems_of
from portal.common import etags
from portal.common.errors import InvalidInput
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.people.accounts.models import User


@transaction.atomic
def set_dotfiles(
    *, actor: User, url: str, ref: str = "", secret: str = "", expected: frozenset[str] = etags.ANY
) -> UserDotfiles | None:
    """Set the dotfiles for the actor's new homes; an empty URL removes them.

    Raises `InvalidInput` for an invalid URL or name, and `PreconditionFailed`.
    """
    url, ref, secret = url.strip(), ref.strip(), secret.strip()
    problems = problems_of(url, ref, secret)
    if problems:
        first = next(iter(problems.values()))
        raise InvalidInput(first, errors={name: [reason] for name, reason in problems.items()})
    before = UserDotfiles.objects.select_for_update().filter(owner=actor).first()
    etags.require_expected(expected, before or UserDotfiles(owner=actor), name=_("Dotfiles"))
    previous = (before.url, before.ref, before.secret) if before is not None else ("", "", "")
    if previous == (url, ref, secret):
        return before
    row = None
    if url:
        fields = {"url": url, "ref": ref, "secret": secret, "changed_at": timezone.now()}
        row, _created = UserDotfiles.objects.update_or_create(owner=actor, defaults=fields)
    else:
        UserDotfiles.objects.filter(owner=actor).delete()
    events.record(
        actor=actor,
        kind=AuditKind.ACCOUNT_DOTFILES,
        message=f"set the dotfiles to {url}" if url else "removed the dotfiles",
        data={"url": url, "ref": ref, "secret": secret},
    )
    return row
