"""Texts of errors about limits, and of notes on running workspaces."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.common.formatting import format_amount, format_resource, format_resource_amount
from portal.common.reasons.wording import Params, Text
from portal.quota.limits.codes import QuotaCode

_RELOAD = _("Reload the page.")
_CHANGE_THAT = _("Edit the existing one.")


def _amounts(params: Params) -> Params:
    """Format `resource` by name, `amount` with unit and name, `over` with unit."""
    resource = params["resource"]
    texts = {**params, "resource": format_resource(resource)}
    if "amount" in params:
        texts["amount"] = format_resource_amount(resource, params["amount"])
    if "over" in params:
        texts["over"] = format_amount(resource, params["over"])
    return texts


def _owners(params: Params) -> Params:
    names = ", ".join(params["owners"])
    ask = _("Ask %(owners)s.") % {"owners": names} if names else _("Ask an operator.")
    return {**params, "ask": ask}


def _users(params: Params) -> Params:
    """Join a list of names; `more` is the number left out of `names`."""
    more, names = params["more"], ", ".join(params["names"])
    if more:
        names += ngettext(" and %(count)s more", " and %(count)s more", more) % {"count": more}
    return {**params, "names": names}


def _circle(params: Params) -> Params:
    """Format a cycle. `params["way"]` lists the cohorts, from the outermost to `name`."""
    name, path = params["name"], params["way"]
    if len(path) < 2:
        return {"sentence": _("%(name)s cannot be inside itself.") % {"name": name}}
    names = {"name": name, "way": " → ".join([*path, name])}
    return {"sentence": _("%(name)s would be inside itself: %(way)s.") % names}


TEXTS: dict[StrEnum, Text] = {
    QuotaCode.AMOUNT_OUT_OF_RANGE: Text(_("Enter an amount from 0 to 1 quadrillion.")),
    QuotaCode.CAP_ABOVE_TEAM: Text(
        _("The cap exceeds the limit of %(team)s (%(amount)s). The lower limit applies."),
        prepare=_amounts,
    ),
    QuotaCode.CAP_EXCEEDED: Text(
        _("%(username)s uses %(amount)s, more than this cap. Running work continues; new work waits."),
        prepare=_amounts,
    ),
    QuotaCode.CAP_EXISTS: Text(_("%(username)s already has a cap on this resource."), _CHANGE_THAT),
    QuotaCode.CAP_OF_ALL_EXISTS: Text(_("The members already have a cap on this resource."), _CHANGE_THAT),
    QuotaCode.CAP_FOR_NO_MEMBER: Text(
        _("%(username)s is not a member of %(team)s."), _("Add them to the team first.")
    ),
    QuotaCode.CHANGED_TWICE: Text(
        _("%(team)s is listed twice for %(resource)s."), _("Remove one of the two lines."), prepare=_amounts
    ),
    QuotaCode.COHORTS_TOO_DEEP: Text(_("Cohorts can be nested up to %(max)s levels deep.")),
    QuotaCode.COHORT_GONE: Text(_("The cohort has been deleted."), _RELOAD),
    QuotaCode.COHORT_INSIDE_ITSELF: Text("%(sentence)s", _("Choose another cohort."), prepare=_circle),
    QuotaCode.COHORT_IN_USE: Text(
        _("%(name)s is in use by %(names)s."), _("Move them to another cohort first."), prepare=_users
    ),
    QuotaCode.COHORT_NAMELESS: Text(_("The cohort name is missing or too long.")),
    QuotaCode.COHORT_NAME_LENGTH: Text(_("Use 1 to %(max)s characters.")),
    QuotaCode.COHORT_NOT_VALID: Text(_("The cohort was not saved because some fields are not valid.")),
    QuotaCode.NOT_BOTH_OWNERS: Text(_("Choose either a team or a cohort.")),
    QuotaCode.NO_CHANGES: Text(_("No quota was changed."), _("Change at least one quota.")),
    QuotaCode.NO_SUCH_CAP: Text(_("Cap not found."), _("Choose a cap from the list.")),
    QuotaCode.NO_SUCH_QUOTA: Text(_("Quota not found."), _("Choose a quota from the list.")),
    QuotaCode.NO_SUCH_RATE: Text(_("Rate: 1 GPU-hour per hour (default)."), _("Check the list of rates.")),
    QuotaCode.NO_SUCH_SITE_LIMIT: Text(
        _("The site has no limit on this resource."), _("Choose a limit from the list of site limits.")
    ),
    QuotaCode.NO_SUCH_COHORT: Text(_("Cohort “%(slug)s” not found."), _("Choose a cohort from the list.")),
    QuotaCode.NO_SUCH_FORM: Text(_("Unknown form."), _RELOAD),
    QuotaCode.NO_SUCH_RESOURCE: Text(
        _(
            "Unknown resource “%(resource)s”. Use gpu, gpu:h100, mig:1g.10gb, cpu_milli, "
            "memory_mib, disk_mib or workspaces."
        )
    ),
    QuotaCode.NUMBER_NOT_UNDERSTOOD: Text(_("Enter a number of at least 0, such as 4 or 1.5.")),
    QuotaCode.ONLY_APPROVERS_BOOK: Text(
        _("Only approvers and operators can decide reservations."), _("Ask an approver.")
    ),
    QuotaCode.ONLY_APPROVERS_DECIDE: Text(
        _("Only approvers can decide quota requests."), _("Ask an approver.")
    ),
    QuotaCode.ONLY_COHORTS_DELETED: Text(_("Only cohorts can be deleted here.")),
    QuotaCode.ONLY_OPERATORS_SET_LIMITS: Text(
        _("Only operators can set quotas and limits."), _("Send a quota request instead.")
    ),
    QuotaCode.ONLY_OWNERS_RESERVE: Text(
        _("Only owners of %(team)s can reserve capacity for the team."), _("Ask an owner of the team.")
    ),
    QuotaCode.ONLY_OWNERS_SPLIT: Text(
        _("Only owners of %(team)s can set member caps."), "%(ask)s", prepare=_owners
    ),
    QuotaCode.OWNER_GONE: Text(_("%(name)s has been deleted."), _RELOAD),
    QuotaCode.QUOTAS_OVERTAKEN: Text(
        _("Quotas changed after you opened them: %(names)s. Nothing was saved."),
        _("Check the current values, then save again."),
        prepare=_users,
    ),
    QuotaCode.QUOTA_EXISTS: Text(
        _("%(owner)s already has a quota for %(resource)s."), _CHANGE_THAT, prepare=_amounts
    ),
    QuotaCode.RATE_OF_NO_ACCELERATOR: Text(
        _("Only accelerators can have a rate. Enter one such as gpu:h100 or mig:1g.10gb.")
    ),
    QuotaCode.RATE_OUT_OF_RANGE: Text(_("Enter a rate from 0 to 1000.")),
    QuotaCode.RESOURCE_NAME_LENGTH: Text(_("Use at most %(max)s characters.")),
    QuotaCode.RESOURCE_NAME_TOO_LONG: Text(_("The resource name is too long.")),
    QuotaCode.ROW_GONE: Text(_("This team or cohort has been deleted."), _RELOAD),
    QuotaCode.SHORT_NAME_TAKEN: Text(_("Slug already in use. Choose another.")),
    QuotaCode.SITE_LIMIT_EXCEEDED: Text(
        _("Usage is %(amount)s, %(over)s over this limit. Running work continues; new work waits."),
        prepare=_amounts,
    ),
    QuotaCode.TEAM_LIMIT_EXCEEDED: Text(
        _("%(team)s uses %(amount)s, %(over)s over its limit. Running work continues; new work waits."),
        prepare=_amounts,
    ),
    QuotaCode.TOO_MANY_CHANGES: Text(
        _("One request can change up to %(max)s quotas."), _("Send the rest in another request.")
    ),
    QuotaCode.WEIGHT_OUT_OF_RANGE: Text(_("Enter a weight from 0.001 to 1000.")),
}
