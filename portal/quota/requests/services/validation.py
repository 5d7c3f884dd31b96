"""Validates requests before they reach an approver."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team, User
from portal.quota.ledger.models import LedgerAccount
from portal.quota.limits import resources
from portal.quota.limits.codes import QuotaCode
from portal.quota.limits.models import MemberCap
from portal.quota.limits.sizes import MAX_HOURS, size_of
from portal.quota.requests.codes import RequestCode
from portal.quota.requests.models import RequestKind

MAX_NOTE = 2000


def check(
    actor: User, team: Team, kind: str, resource: str, amount: int, until: datetime | None, note: str
) -> None:
    """Raise `InvalidInput` for an invalid request, and for one whose grant would have no effect."""
    problems: dict[str, list[Reason]] = {}
    if kind not in RequestKind.values:
        problems["kind"] = [Reason(CommonCode.CHOOSE_ONE_OF, {"known": list(RequestKind.values)})]
    elif kind == RequestKind.LEDGER and resource != resources.GPU_HOURS:
        problems["resource"] = [Reason(RequestCode.LEDGER_RESOURCE, {"resource": resources.GPU_HOURS})]
    elif kind != RequestKind.LEDGER and not resources.is_resource(resource):
        problems["resource"] = [Reason(QuotaCode.NO_SUCH_RESOURCE, {"resource": resource})]
    if isinstance(amount, bool) or not isinstance(amount, int) or amount <= 0:
        problems["amount"] = [Reason(RequestCode.AMOUNT_NOT_POSITIVE)]
    if until is not None and until <= timezone.now():
        problems["until"] = [Reason(RequestCode.UNTIL_NOT_IN_FUTURE)]
    if until is not None and kind == RequestKind.LEDGER:
        problems["until"] = [Reason(RequestCode.HOURS_HAVE_NO_END)]
    if not note:
        problems["note"] = [Reason(RequestCode.NOTE_MISSING)]
    elif len(note) > MAX_NOTE:
        problems["note"] = [Reason(RequestCode.NOTE_TOO_LONG, {"max": MAX_NOTE})]
    if not problems:
        problems |= _no_effect_errors(actor, team, kind, resource, amount)
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(Reason(RequestCode.CORRECT_AND_ASK, {"first": first.as_json()}), errors=problems)


def _no_effect_errors(
    actor: User, team: Team, kind: str, resource: str, amount: int
) -> dict[str, list[Reason]]:
    """Return the errors of a request whose grant would have no effect."""
    size = size_of(resource)
    if size is not None and amount > size:
        if not size:
            return {"resource": [Reason(RequestCode.SITE_HAS_NONE, {"resource": resource})]}
        days = MAX_HOURS // 24 if resource == resources.GPU_HOURS else 0
        params = {"resource": resource, "amount": size, "days": days}
        return {"amount": [Reason(RequestCode.ASK_FOR_LESS, params)]}
    if kind == RequestKind.LEDGER and not LedgerAccount.objects.filter(team=team).exists():
        return {"kind": [Reason(RequestCode.NO_BUDGET, {"team": team.name})]}
    if kind == RequestKind.MEMBER_CAP:
        caps = MemberCap.objects.filter(team=team, resource=resource)
        if not caps.filter(user=actor).exists() and not caps.filter(user=None).exists():
            return {"kind": [Reason(RequestCode.NO_CAP, {"resource": resource, "team": team.name})]}
    return {}
