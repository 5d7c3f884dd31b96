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

_LOOK_AT_IT = _("Open the request to see the decision.")
_JUST_NOW = timedelta(minutes=2)
_IN_MINUTES = timedelta(hours=2)


def _amounts(params: Params) -> Params:
    """Format `resource` by name and `amount` with unit and name, per `days` if given."""
    resource = params["resource"]
    texts = {**params, "resource": format_resource(resource)}
    if "amount" in params:
        texts["amount"] = format_resource_amount(resource, params["amount"])
    if params.get("days"):
        values = {"amount": texts["amount"], "days": params["days"]}
        texts["amount"] = gettext("%(amount)s in %(days)s days") % values
    return texts


def _format_decision(params: Params) -> Params:
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


def _format_until(params: Params) -> Params:
    return {**params, "until": format_moment(datetime.fromisoformat(params["until"]))}


TEXTS: dict[StrEnum, Text] = {
    RequestCode.AMOUNT_NOT_POSITIVE: Text(_("Enter an amount greater than 0.")),
    RequestCode.APPROVED_ALREADY: Text(
        _("%(who)s approved the request %(when)s."), _LOOK_AT_IT, prepare=_format_decision
    ),
    RequestCode.ASKED_ALREADY: Text(
        _("Your request for %(amount)s more for %(team)s is still pending."),
        _("Open the existing request, or cancel it first."),
        prepare=_amounts,
    ),
    RequestCode.ASKED_TIME_OVER: Text(_("The requested period is over. Choose an end in the future.")),
    RequestCode.ASK_FOR_LESS: Text(
        _("The site has only %(amount)s. Request that amount or less."), prepare=_amounts
    ),
    RequestCode.CHOOSE_MORE_THAN_ZERO: Text(_("Enter an amount greater than 0.")),
    RequestCode.CORRECT_AND_ASK: Text(
        "%(first)s", _("Correct the field and send the request again."), prepare=first_problem
    ),
    RequestCode.CORRECT_AND_DECIDE: Text(
        "%(first)s", _("Correct the field and decide again."), prepare=first_problem
    ),
    RequestCode.DECIDED_ALREADY: Text(
        _("%(who)s changed the request %(when)s."), _LOOK_AT_IT, prepare=_format_decision
    ),
    RequestCode.DELEGATED_ALREADY: Text(
        _("%(username)s is already your delegate until %(until)s."),
        _("Revoke that delegation first, or choose other days."),
        prepare=_format_until,
    ),
    RequestCode.DELEGATE_IS_SELF: Text(_("Choose another person. You can already decide these requests.")),
    RequestCode.DELEGATION_END: Text(_("Choose an end in the future, after the start.")),
    RequestCode.DELEGATION_TOO_LONG: Text(_("Choose an end within 1 year of the start.")),
    RequestCode.DENIAL_NEEDS_NOTE: Text(
        _("A denial needs a note."), _("Enter the reason and an alternative.")
    ),
    RequestCode.DENIED_ALREADY: Text(
        _("%(who)s denied the request %(when)s."), _LOOK_AT_IT, prepare=_format_decision
    ),
    RequestCode.END_IN_FUTURE: Text(_("Choose an end in the future.")),
    RequestCode.GRANT_ENDED: Text(_("The grant has expired."), _("You do not need to revoke it.")),
    RequestCode.GRANT_OUT_OF_RANGE: Text(
        _("Enter more than 0 and at most the requested %(amount)s."), prepare=_amounts
    ),
    RequestCode.HOURS_HAVE_NO_END: Text(_("GPU-hours do not expire. Leave the end empty.")),
    RequestCode.HOURS_OUT_OF_RANGE: Text(_("Enter 1 to %(max)s hours.")),
    RequestCode.LEDGER_RESOURCE: Text(_("The ledger counts only %(resource)s. Choose that resource.")),
    RequestCode.NEEDS_NO_APPROVAL: Text(
        _("%(template)s on %(flavor)s needs no approval."),
        _("Start it on the New workspace page."),
    ),
    RequestCode.NOT_YOUR_WORKSPACE: Text(
        _("You do not own this workspace in this team."),
        _("Choose a workspace of your own, or leave the field empty."),
    ),
    RequestCode.NO_BUDGET: Text(_("%(team)s has no limit on GPU-hours, so no request is needed.")),
    RequestCode.NO_CAP: Text(
        _("You have no cap on %(resource)s in %(team)s. Request more quota for the team."),
        prepare=_amounts,
    ),
    RequestCode.NO_SUCH_DELEGATION: Text(_("Delegation not found."), _("Choose a delegation from the list.")),
    RequestCode.NO_SUCH_GRANT: Text(_("Grant not found."), _("Check the grants on the team's page.")),
    RequestCode.NO_SUCH_REQUEST: Text(_("Request not found."), _("Check your list of requests.")),
    RequestCode.NO_SUCH_RULE: Text(_("Rule not found."), _("Choose a rule from the list.")),
    RequestCode.ONLY_APPROVERS_CHANGE_RULES: Text(
        _("Only approvers can change rules and delegations."), _("Ask an approver.")
    ),
    RequestCode.ONLY_APPROVERS_DECIDE_REQUEST: Text(
        _("Only approvers can decide quota requests."), _("Wait for an approver's decision.")
    ),
    RequestCode.ONLY_REQUESTER_CANCELS: Text(
        _("Only the requester can cancel a request."), _("Ask %(username)s.")
    ),
    RequestCode.ONLY_DECIDERS_SEE_RULES: Text(
        _("Only people who decide requests can see the rules."),
        _("Open the request form to see what is approved automatically."),
    ),
    RequestCode.ONLY_DELEGATOR_TAKES_BACK: Text(
        _("Only %(username)s can revoke this delegation."), _("Ask them to revoke it.")
    ),
    RequestCode.ONLY_OWNERS_DECIDE_CAPS: Text(
        _("Only owners of %(team)s and operators can decide member caps."),
        _("Ask an owner of the team."),
    ),
    RequestCode.ONLY_OWNERS_REVOKE: Text(
        _("Only people who decide such requests can revoke a grant."), _("Ask an owner of the team.")
    ),
    RequestCode.ONLY_APPROVERS_REVOKE: Text(
        _("Only people who decide such requests can revoke a grant."), _("Ask an approver.")
    ),
    RequestCode.NOTE_FOR_REQUESTER: Text(_("Enter a note for the requester.")),
    RequestCode.SITE_HAS_NONE: Text(
        _("The site has no %(resource)s. Choose another resource."), prepare=_amounts
    ),
    RequestCode.UNTIL_NOT_IN_FUTURE: Text(_("Choose a time in the future.")),
    RequestCode.NOTE_MISSING: Text(_("Enter the purpose in a few words.")),
    RequestCode.NOTE_TOO_LONG: Text(_("Use at most %(max)s characters.")),
    RequestCode.REQUEST_CANCELLED_ALREADY: Text(
        _("%(who)s cancelled the request %(when)s."), _LOOK_AT_IT, prepare=_format_decision
    ),
    RequestCode.WORKSPACE_OF_YOURS: Text(_("Choose a workspace of your own in this team.")),
    RequestCode.AUDITOR_ONLY_READS: Text(
        _("%(username)s is an auditor and cannot decide. Choose another person.")
    ),
}
