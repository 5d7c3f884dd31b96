"""Texts of errors about limits, and of notes on running workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_amount, format_resource, format_resource_amount
from portal.common.reasons.wording import Params, Text
from portal.quota.limits.codes import QuotaCode

_RELOAD = _("Reload the page.")
_CHANGE_THAT = _("Change that one.")


def _amounts(params: Params) -> Params:
    """Format `resource` by name, `amount` with unit and name, `over` with unit."""
    resource = params["resource"]
    found = {**params, "resource": format_resource(resource)}
    if "amount" in params:
        found["amount"] = format_resource_amount(resource, params["amount"])
    if "over" in params:
        found["over"] = format_amount(resource, params["over"])
    return found


def _owners(params: Params) -> Params:
    names = ", ".join(params["owners"])
    ask = _("Ask %(owners)s.") % {"owners": names} if names else _("Ask an operator.")
    return {**params, "ask": ask}


def _users(params: Params) -> Params:
    """Format the members of a cohort; `more` is the number left out of `names`."""
    more, names = params["more"], ", ".join(params["names"])
    if more:
        names += ngettext(" and %(count)s more", " and %(count)s more", more) % {"count": more}
    return {**params, "names": names}


def _circle(params: Params) -> Params:
    """Format a cycle. `way` lists the cohorts from the outermost to the one inside itself."""
    name, way = params["name"], params["way"]
    if len(way) < 2:
        return {"sentence": _("%(name)s cannot be inside itself.") % {"name": name}}
    words = {"name": name, "way": " → ".join([*way, name])}
    return {"sentence": _("%(name)s would be inside itself: %(way)s.") % words}


TEXTS: dict[StrEnum, Text] = {
    QuotaCode.AMOUNT_OUT_OF_RANGE: Text(_("Choose an amount from 0 to a quadrillion.")),
    QuotaCode.CAP_ABOVE_TEAM: Text(
        _("This is more than %(team)s may have of it at all (%(amount)s). The team's own limit holds."),
        prepare=_amounts,
    ),
    QuotaCode.CAP_EXCEEDED: Text(
        _("%(username)s holds %(amount)s now. What runs goes on; nothing new starts until it is below."),
        prepare=_amounts,
    ),
    QuotaCode.CAP_EXISTS: Text(_("%(username)s has a cap on this already."), _CHANGE_THAT),
    QuotaCode.CAP_OF_ALL_EXISTS: Text(_("Each member has a cap on this already."), _CHANGE_THAT),
    QuotaCode.CAP_FOR_NO_MEMBER: Text(
        _("%(username)s is not in %(team)s."), _("Add them to the team first.")
    ),
    QuotaCode.COHORTS_TOO_DEEP: Text(_("Cohorts can be nested %(max)s deep.")),
    QuotaCode.COHORT_GONE: Text(_("That cohort is no longer there."), _RELOAD),
    QuotaCode.COHORT_INSIDE_ITSELF: Text("%(sentence)s", _("Choose another cohort."), prepare=_circle),
    QuotaCode.COHORT_IN_USE: Text(
        _("%(name)s is in use by %(names)s."), _("Put them elsewhere first."), prepare=_users
    ),
    QuotaCode.COHORT_NAMELESS: Text(_("A cohort needs a name.")),
    QuotaCode.COHORT_NAME_LENGTH: Text(_("From 1 to %(max)s characters.")),
    QuotaCode.COHORT_NOT_VALID: Text(_("The cohort cannot be made like this.")),
    QuotaCode.NOT_BOTH_OWNERS: Text(_("Name a team or a cohort, and not both.")),
    QuotaCode.NO_SUCH_CAP: Text(_("There is no such cap."), _("Look at the list of caps.")),
    QuotaCode.NO_SUCH_QUOTA: Text(_("There is no such quota."), _("Look at the list of quotas.")),
    QuotaCode.NO_SUCH_RATE: Text(
        _("An hour of it costs one GPU-hour: no other rate is set."), _("Look at the list of rates.")
    ),
    QuotaCode.NO_SUCH_SITE_LIMIT: Text(
        _("The site sets no limit to it."), _("Look at the list of the site's limits.")
    ),
    QuotaCode.NO_SUCH_COHORT: Text(_("There is no cohort “%(slug)s”."), _("Look at the list of cohorts.")),
    QuotaCode.NO_SUCH_FORM: Text(_("This form is not known."), _RELOAD),
    QuotaCode.NO_SUCH_RESOURCE: Text(
        _(
            "“%(resource)s” is no resource. Use gpu, gpu:h100, mig:1g.10gb, cpu_milli, memory_mib, disk_mib"
            " or workspaces."
        )
    ),
    QuotaCode.NUMBER_NOT_UNDERSTOOD: Text(_("Type a number from 0 on, such as 4 or 1.5.")),
    QuotaCode.ONLY_APPROVERS_BOOK: Text(
        _("Only an approver or an operator decides about reservations."), _("Ask an approver.")
    ),
    QuotaCode.ONLY_APPROVERS_DECIDE: Text(
        _("Only an approver decides requests for more."), _("Ask an approver.")
    ),
    QuotaCode.ONLY_COHORTS_DELETED: Text(_("Only cohorts are deleted here.")),
    QuotaCode.ONLY_OPERATORS_SET_LIMITS: Text(
        _("Only an operator sets quotas and limits."), _("Ask for more instead.")
    ),
    QuotaCode.ONLY_OWNERS_RESERVE: Text(
        _("Only an owner of %(team)s reserves capacity for it."), _("Ask an owner of the team.")
    ),
    QuotaCode.ONLY_OWNERS_SPLIT: Text(
        _("Only an owner of %(team)s splits its quota among the members."), "%(ask)s", prepare=_owners
    ),
    QuotaCode.OWNER_GONE: Text(_("%(name)s is no longer there."), _RELOAD),
    QuotaCode.QUOTA_EXISTS: Text(
        _("%(owner)s has a quota of %(resource)s already."), _CHANGE_THAT, prepare=_amounts
    ),
    QuotaCode.RATE_OF_NO_ACCELERATOR: Text(
        _("Only accelerators have a rate, such as gpu:h100 or mig:1g.10gb.")
    ),
    QuotaCode.RATE_OUT_OF_RANGE: Text(_("Choose a rate from 0 to 1000.")),
    QuotaCode.RESOURCE_NAME_LENGTH: Text(_("At most %(max)s characters.")),
    QuotaCode.RESOURCE_NAME_TOO_LONG: Text(_("This name is too long.")),
    QuotaCode.ROW_GONE: Text(_("This row is no longer there."), _RELOAD),
    QuotaCode.SHORT_NAME_TAKEN: Text(_("This short name is taken.")),
    QuotaCode.SITE_LIMIT_EXCEEDED: Text(
        _(
            "%(amount)s are in use, %(over)s over this limit. What runs goes on; nothing new starts until"
            " it is below."
        ),
        prepare=_amounts,
    ),
    QuotaCode.TEAM_LIMIT_EXCEEDED: Text(
        _(
            "%(team)s uses %(amount)s, %(over)s over what it may. What runs goes on; nothing new starts"
            " until it is below."
        ),
        prepare=_amounts,
    ),
    QuotaCode.WEIGHT_OUT_OF_RANGE: Text(_("Choose a weight from 0.001 to 1000.")),
}
