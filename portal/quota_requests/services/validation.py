"""What can be asked for: the rules that a request meets before anybody is bothered with it."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.utils import timezone

from portal.accounts.models import Team, User
from portal.common.errors import InvalidInput
from portal.common.formatting import format_resource, format_resource_amount
from portal.ledger.models import LedgerAccount
from portal.quota_requests.models import RequestKind
from portal.quotas import resources
from portal.quotas.models import MemberCap
from portal.quotas.sizes import MAX_HOURS, size_of

WHY_MAX = 2000


def check(
    actor: User, team: Team, kind: str, resource: str, amount: int, until: datetime | None, why: str
) -> None:
    """Raises `InvalidInput` for what cannot be asked, and for what would change nothing if granted."""
    problems: dict[str, list[str]] = {}
    if kind not in RequestKind.values:
        problems["kind"] = [f"Choose one of {', '.join(RequestKind.values)}."]
    elif kind == RequestKind.LEDGER and resource != resources.GPU_HOURS:
        problems["resource"] = [f"Of the ledger there is only {resources.GPU_HOURS}."]
    elif kind != RequestKind.LEDGER:
        try:
            resources.validate_resource(resource)
        except ValidationError as error:
            problems["resource"] = list(error.messages)
    if isinstance(amount, bool) or not isinstance(amount, int) or amount <= 0:
        problems["amount"] = ["Ask for more than zero."]
    if until is not None and until <= timezone.now():
        problems["until"] = ["Choose a time in the future."]
    if until is not None and kind == RequestKind.LEDGER:
        problems["until"] = ["GPU-hours last until they are spent: leave the end out."]
    if not why:
        problems["why"] = ["Say in a few words what it is for."]
    elif len(why) > WHY_MAX:
        problems["why"] = [f"Use at most {WHY_MAX} characters."]
    if not problems:
        problems |= _senseless(actor, team, kind, resource, amount)
    if problems:
        first = next(iter(problems.values()))[0]
        raise InvalidInput(first, next_action="Correct it and ask again.", errors=problems)


def _senseless(actor: User, team: Team, kind: str, resource: str, amount: int) -> dict[str, list[str]]:
    """What could be granted and would change nothing."""
    size = size_of(resource)
    if size is not None and amount > size:
        has = f"{format_resource_amount(resource, size)}" + (
            f" in {MAX_HOURS // 24} days" if resource == resources.GPU_HOURS else ""
        )
        if not size:
            return {"resource": [f"This site has no {format_resource(resource)}."]}
        return {"amount": [f"This site has {has} in all: ask for at most that."]}
    if kind == RequestKind.LEDGER and not LedgerAccount.objects.filter(team=team).exists():
        return {"kind": [f"{team.name} has no budget of GPU-hours, so nothing is missing there."]}
    if kind == RequestKind.MEMBER_CAP:
        caps = MemberCap.objects.filter(team=team, resource=resource)
        if not caps.filter(user=actor).exists() and not caps.filter(user=None).exists():
            named = format_resource(resource)
            return {"kind": [f"No cap on {named} holds you back in {team.name}: ask for its quota instead."]}
    return {}
