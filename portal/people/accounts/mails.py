"""E-mails with links. Links are created when the mail is sent, so no queue or row contains them."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.core.mail import EmailMessage
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.celery import app
from portal.common.events import services as events
from portal.common.events.kinds import AuditKind
from portal.common.events.models import Event
from portal.common.formatting import format_moment
from portal.common.htmx import public_url
from portal.people.accounts import links, sessions
from portal.people.accounts.links import LinkKind
from portal.people.accounts.models import HAS_PASSWORD, AccountState, User

# Repeated requests within this time send one mail.
PAUSE = timedelta(minutes=5)

log = logging.getLogger(__name__)


def order_link(user_id: UUID, kind: LinkKind) -> None:
    """Queue an e-mail to the user that contains a link of this kind."""
    _order("control.mail_link", user_id=str(user_id), kind=kind.value)


def order_forgotten(name: str) -> None:
    """Queue an e-mail to the user with this name or address. The worker looks up the user."""
    _order("control.mail_forgotten", name=name)


def _order(task: str, **kwargs: str) -> None:
    try:
        app.send_task(task, kwargs=kwargs, queue="control")
    except Exception as error:
        # Without the queue nothing is sent; the user can ask again.
        log.warning("could not send %s to the worker: %s", task, error)


def send_link(user_id: UUID, kind: LinkKind) -> bool:
    """Send a link to the user. Returns False if the account has no address or is closed. Raises `OSError`."""
    user = User.objects.not_deleted().filter(pk=user_id, is_active=True).exclude(email="").first()
    if user is None:
        return False
    subject, lead = _mail_text(user, kind)
    until = format_moment(links.expires_at(kind))
    parts = [
        lead,
        links.make(user, kind),
        _("The link works once, until %(moment)s.") % {"moment": until},
    ]
    EmailMessage(
        subject=f"[Berth] {subject}",
        body="\n\n".join(parts) + "\n",
        to=[user.email],
        headers={"Auto-Submitted": "auto-generated"},
    ).send()
    return True


def send_forgotten(name: str) -> bool:
    """Send a link to the user with this name or address and a password. Returns whether one was sent."""
    if not name:
        return False
    matching = Q(username=name.lower()) | Q(email__iexact=name)
    user = (
        User.objects.with_state(AccountState.ACTIVE).filter(HAS_PASSWORD, matching).exclude(email="").first()
    )
    if user is None:
        return False
    recent = Event.objects.filter(
        kind=AuditKind.USER_PASSWORD_FORGOTTEN, actor=user, at__gt=timezone.now() - PAUSE
    )
    if recent.exists():
        return False
    sent = send_link(user.pk, LinkKind.FORGOTTEN)
    events.record(
        actor=user,
        kind=AuditKind.USER_PASSWORD_FORGOTTEN,
        message="received a link to reset the password",
        targets=sessions.audit_targets(user),
    )
    return sent


def _mail_text(user: User, kind: LinkKind) -> tuple[str, str]:
    params = {"username": user.username, "url": public_url()}
    match kind:
        case LinkKind.INVITATION:
            return (
                _("Your invitation"),
                _("You have an account, %(username)s, at %(url)s. Choose a password here:") % params,
            )
        case LinkKind.RESET:
            return (
                _("Choose a new password"),
                _(
                    "An administrator of %(url)s has reset the password of %(username)s. Choose a new "
                    "one here:"
                )
                % params,
            )
        case LinkKind.FORGOTTEN:
            return (
                _("Your password"),
                _(
                    "A new password was requested for %(username)s at %(url)s. Choose it here. If you "
                    "did not request it, ignore this e-mail."
                )
                % params,
            )
