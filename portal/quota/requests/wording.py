"""Texts of errors about requests, rules and delegations. Times are ISO 8601."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_date, format_moment, format_resource, format_resource_amount
from portal.common.reasons.wording import Params, Text, first_problem
from portal.quota.requests.codes import RequestCode

_LOOK_AT_IT = _("Look at the request: it says what was decided.")
_JUST_NOW = timedelta(minutes=2)
_IN_MINUTES = timedelta(hours=2)


def _amounts(params: Params) -> Params:
    """Format `resource` by name and `amount` with unit and name, per `days` if given."""
    resource = params["resource"]
    found = {**params, "resource": format_resource(resource)}
    if "amount" in params:
        found["amount"] = format_resource_amount(resource, params["amount"])
    if params.get("days"):
        words = {"amount": found["amount"], "days": params["days"]}
        found["amount"] = gettext("%(amount)s in %(days)s days") % words
    return found


def _decided(params: Params) -> Params:
    """Format the decider and the time, in minutes if recent."""
    at = datetime.fromisoformat(params["at"])
    ago = timezone.now() - at
    minutes = int(ago.total_seconds() // 60)
    if ago < _JUST_NOW:
        when = gettext("a moment ago")
    elif ago < _IN_MINUTES:
        when = ngettext("%(count)s minute ago", "%(count)s minutes ago", minutes) % {"count": minutes}
    else:
        when = gettext("on %(date)s") % {"date": format_date(at)}
    return {"who": params["who"] or gettext("A rule"), "when": when}


def _until(params: Params) -> Params:
    return {**params, "until": format_moment(datetime.fromisoformat(params["until"]))}


TEXTS: dict[StrEnum, Text] = {
    RequestCode.AMOUNT_NOT_POSITIVE: Text(_("Ask for more than zero.")),
    RequestCode.APPROVED_ALREADY: Text(_("%(who)s approved it %(when)s."), _LOOK_AT_IT, prepare=_decided),
    RequestCode.ASKED_ALREADY: Text(
        _("You have asked for %(amount)s more for %(team)s already, and that is still open."),
        _("Open the existing request, or cancel it first."),
        prepare=_amounts,
    ),
    RequestCode.ASKED_TIME_OVER: Text(_("The time that was asked for is over. Choose an end in the future.")),
    RequestCode.ASK_FOR_LESS: Text(
        _("This site has %(amount)s in all: ask for at most that."), prepare=_amounts
    ),
    RequestCode.CHOOSE_MORE_THAN_ZERO: Text(_("Choose more than zero.")),
    RequestCode.CORRECT_AND_ASK: Text("%(first)s", _("Correct it and ask again."), prepare=first_problem),
    RequestCode.CORRECT_AND_DECIDE: Text(
        "%(first)s", _("Correct it and decide again."), prepare=first_problem
    ),
    RequestCode.DECIDED_ALREADY: Text(_("%(who)s changed it %(when)s."), _LOOK_AT_IT, prepare=_decided),
    RequestCode.DELEGATED_ALREADY: Text(
        _("%(username)s decides in your place already until %(until)s."),
        _("Take that back first, or choose other days."),
        prepare=_until,
    ),
    RequestCode.DELEGATE_IS_SELF: Text(_("Choose somebody else: you may decide anyway.")),
    RequestCode.DELEGATION_END: Text(_("Choose an end after the beginning, in the future.")),
    RequestCode.DELEGATION_TOO_LONG: Text(_("A year at most.")),
    RequestCode.DENIAL_NEEDS_NOTE: Text(
        _("A denial needs a note."), _("Say in a sentence why, and what would be better.")
    ),
    RequestCode.DENIED_ALREADY: Text(_("%(who)s denied it %(when)s."), _LOOK_AT_IT, prepare=_decided),
    RequestCode.END_IN_FUTURE: Text(_("Choose an end in the future.")),
    RequestCode.GRANT_ENDED: Text(_("This grant has ended by itself."), _("There is nothing to take back.")),
    RequestCode.GRANT_OUT_OF_RANGE: Text(
        _("Grant more than zero and at most what was asked: %(amount)s."), prepare=_amounts
    ),
    RequestCode.HOURS_HAVE_NO_END: Text(_("GPU-hours last until they are spent: leave the end out.")),
    RequestCode.HOURS_OUT_OF_RANGE: Text(_("Choose from 1 to %(max)s hours.")),
    RequestCode.LEDGER_RESOURCE: Text(_("Of the ledger there is only %(resource)s.")),
    RequestCode.NEEDS_NO_APPROVAL: Text(
        _("%(template)s on %(flavor)s needs no approval now."),
        _("Start it on the page for new workspaces."),
    ),
    RequestCode.NOT_YOUR_WORKSPACE: Text(
        _("The workspace is not yours in this team."), _("Leave it out, or choose one of your own.")
    ),
    RequestCode.NO_BUDGET: Text(_("%(team)s has no budget of GPU-hours, so nothing is missing there.")),
    RequestCode.NO_CAP: Text(
        _("No cap on %(resource)s holds you back in %(team)s: ask for its quota instead."),
        prepare=_amounts,
    ),
    RequestCode.NO_SUCH_DELEGATION: Text(
        _("There is no such delegation that you may see."), _("Look at the list.")
    ),
    RequestCode.NO_SUCH_GRANT: Text(
        _("There is no such grant that you may see."), _("Look at the team's page.")
    ),
    RequestCode.NO_SUCH_REQUEST: Text(
        _("There is no such request that you may see."), _("Look at your requests.")
    ),
    RequestCode.NO_SUCH_RULE: Text(
        _("There is no such rule that you may see."), _("Look at the list of rules.")
    ),
    RequestCode.ONLY_APPROVERS_CHANGE_RULES: Text(
        _("Only an approver may change rules and delegations."), _("Ask an approver to do it.")
    ),
    RequestCode.ONLY_APPROVERS_DECIDE_REQUEST: Text(
        _("Only an approver decides requests for more."), _("Wait until one has decided.")
    ),
    RequestCode.ONLY_REQUESTER_CANCELS: Text(
        _("Only the requester may cancel a request."), _("Ask %(username)s.")
    ),
    RequestCode.ONLY_DECIDERS_SEE_RULES: Text(
        _("Only who decides requests sees the rules."),
        _("The page on which you ask says what is approved at once."),
    ),
    RequestCode.ONLY_DELEGATOR_TAKES_BACK: Text(
        _("Only %(username)s may take this back."), _("Ask them to do it.")
    ),
    RequestCode.ONLY_OWNERS_DECIDE_CAPS: Text(
        _("Only an owner of %(team)s or an operator decides about caps of its members."),
        _("Ask an owner of the team."),
    ),
    RequestCode.ONLY_OWNERS_REVOKE: Text(
        _("Only who decides such requests may take a grant back."), _("Ask an owner of the team.")
    ),
    RequestCode.ONLY_APPROVERS_REVOKE: Text(
        _("Only who decides such requests may take a grant back."), _("Ask an approver.")
    ),
    RequestCode.NOTE_FOR_REQUESTER: Text(_("Write a note for the requester.")),
    RequestCode.SITE_HAS_NONE: Text(_("This site has no %(resource)s."), prepare=_amounts),
    RequestCode.UNTIL_IN_FUTURE: Text(_("Choose a time in the future.")),
    RequestCode.NOTE_MISSING: Text(_("Say in a few words what it is for.")),
    RequestCode.NOTE_TOO_LONG: Text(_("Use at most %(max)s characters.")),
    RequestCode.REQUEST_CANCELLED_ALREADY: Text(
        _("%(who)s cancelled it %(when)s."), _LOOK_AT_IT, prepare=_decided
    ),
    RequestCode.WORKSPACE_OF_YOURS: Text(_("Choose a workspace of your own in this team.")),
    RequestCode.AUDITOR_ONLY_READS: Text(_("%(username)s is an auditor, who only reads.")),
}
