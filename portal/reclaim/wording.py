"""Texts of errors about lifetimes, and of reasons for stops."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_day_time
from portal.common.reasons.wording import Params, Text, durations
from portal.reclaim.codes import LifetimeCode


def _format_until(params: Params) -> Params:
    return {**params, "until": format_day_time(datetime.fromisoformat(params["until"]))}


TEXTS: dict[StrEnum, Text] = {
    LifetimeCode.KEPT_OUT_OF_RANGE: Text(
        _("The time to keep a workspace must be from %(least_s)s to %(most_s)s."),
        _("Choose a time in this range."),
        durations,
    ),
    LifetimeCode.NOT_NEAR_ITS_END: Text(
        _("%(name)s has more than %(near_s)s left."),
        _("Extend the workspace on its page in the portal."),
        durations,
    ),
    LifetimeCode.HOURS_SPENT: Text(
        _("%(team)s has no GPU-hours left, so GPU workspaces cannot be extended."),
        _("Request more GPU-hours."),
    ),
    LifetimeCode.BOOKED_BEFORE: Text(
        _("A reservation needs this capacity on %(until)s, and the workspace cannot be preempted."),
        _("Choose a shorter extension."),
        _format_until,
    ),
    LifetimeCode.ENDS_BY_LIFETIME: Text(_("The lifetime of %(threshold_s)s has expired."), "", durations),
    LifetimeCode.ENDS_BY_GPU_IDLE: Text(
        _("The GPUs have been idle for %(value_s)s. The workspace stops after %(threshold_s)s."),
        "",
        durations,
    ),
    LifetimeCode.ENDS_BY_IDLE: Text(
        _("The workspace has been idle for %(value_s)s. It stops after %(threshold_s)s."), "", durations
    ),
    LifetimeCode.ENDS_BY_LONGEST: Text(
        _("The workspace has run for %(value_s)s. It stops after %(threshold_s)s."), "", durations
    ),
    LifetimeCode.ENDS_BY_SCHEDULE: Text(_("The portal stops unused workspaces at this hour.")),
    LifetimeCode.ENDS_BY_BUDGET: Text(
        _("The team has no GPU-hours left."), _("Request more GPU-hours, then start the workspace again.")
    ),
    LifetimeCode.RELEASED_BY_IDLE: Text(
        _("The workspace has been idle for %(value_s)s. Its GPUs are released after %(threshold_s)s."),
        "",
        durations,
    ),
    LifetimeCode.RELEASED_BY_GPU_IDLE: Text(
        _("The GPUs have been idle for %(value_s)s. They are released after %(threshold_s)s."),
        "",
        durations,
    ),
    LifetimeCode.POLICY_NOT_VALID: Text(
        _("The policy was not saved because some fields are not valid."), _("Correct the marked fields.")
    ),
    LifetimeCode.POLICY_TARGET_UNKNOWN: Text(
        _("Policy target %(target)s not found."),
        _("Enter site, or a kind and slug, for example flavor:a100-full."),
    ),
    LifetimeCode.POLICY_TARGET_FIXED: Text(
        _("The target of a policy cannot be changed later."), _("Delete the policy and create a new one.")
    ),
    LifetimeCode.POLICY_TAKEN: Text(_("%(target)s already has a policy."), _("Edit the existing policy.")),
    LifetimeCode.POLICY_SAYS_NOTHING: Text(
        _("The policy sets no value."), _("Set at least 1 value, or delete the policy.")
    ),
    LifetimeCode.POLICY_NOT_FOUND: Text(_("Policy not found."), _("Choose a policy from the list.")),
    LifetimeCode.POLICY_NOT_FOR_TEAM: Text(_("Teams cannot set this value."), _("Leave the field empty.")),
    LifetimeCode.POLICY_NOT_FOR_HOMES: Text(
        _("Templates and flavors have no home folders."),
        _("Set this value for the site, a pool or a team instead."),
    ),
    LifetimeCode.HOME_DELETE_NOT_DUE: Text(
        _("This home folder cannot be deleted yet."),
        _("Wait until its archive reaches the policy's age and the user's notice period ends."),
    ),
    LifetimeCode.HOME_NOT_NAMED: Text(
        _("“%(given)s” is not the name of this home folder."), _("Type %(home)s.")
    ),
    LifetimeCode.POLICY_ZONE_UNKNOWN: Text(
        _("Unknown time zone."), _("Enter a name such as Europe/Berlin or UTC.")
    ),
    LifetimeCode.POLICY_START_WITHOUT_STOP: Text(
        _("A start time needs a different stop time."),
        _("Set a stop time that differs from the start time."),
    ),
    LifetimeCode.POLICY_DAYS_UNKNOWN: Text(_("Unknown day."), _("Use mon, tue, wed, thu, fri, sat or sun.")),
    LifetimeCode.POLICY_DAYS_MISSING: Text(
        _("Working hours and stop times need days and a time zone."), _("Select the days and the time zone.")
    ),
    LifetimeCode.POLICY_HOURS_INCOMPLETE: Text(
        _("Working hours need a start, a later end, and an outside limit or a stop time."),
        _("Fill in the missing fields, or leave all of them empty."),
    ),
    LifetimeCode.POLICY_HOLIDAYS_UNKNOWN: Text(
        _("Holidays must be up to 400 dates such as 2026-12-25."), _("Correct the dates.")
    ),
}
