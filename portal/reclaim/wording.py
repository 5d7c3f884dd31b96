"""Texts of errors about lifetimes, and of reasons of stops."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_day_time
from portal.common.reasons.wording import Params, Text, durations
from portal.reclaim.codes import LifetimeCode


def _until(params: Params) -> Params:
    return {**params, "until": format_day_time(datetime.fromisoformat(params["until"]))}


TEXTS: dict[StrEnum, Text] = {
    LifetimeCode.KEPT_OUT_OF_RANGE: Text(
        _("A workspace is kept for %(least_s)s at least and %(most_s)s at most."),
        _("Choose a time between these."),
        durations,
    ),
    LifetimeCode.NOT_NEAR_ITS_END: Text(
        _("%(name)s has more than %(near_s)s left."), _("Extend it on its page in the portal."), durations
    ),
    LifetimeCode.HOURS_SPENT: Text(
        _("The GPU-hours of %(team)s are spent, so what uses GPUs is not extended."),
        _("Ask for more GPU-hours."),
    ),
    LifetimeCode.BOOKED_BEFORE: Text(
        _("A reservation needs its place on %(until)s, and it cannot make room earlier."),
        _("Extend it by less."),
        _until,
    ),
    LifetimeCode.ENDS_BY_LIFETIME: Text(
        _("The %(threshold_s)s for which it was started are over."), "", durations
    ),
    LifetimeCode.ENDS_BY_GPU_IDLE: Text(
        _("Its GPUs have done nothing for %(value_s)s; after %(threshold_s)s it stops."), "", durations
    ),
    LifetimeCode.ENDS_BY_IDLE: Text(
        _("Nothing has happened in it for %(value_s)s; after %(threshold_s)s it stops."), "", durations
    ),
    LifetimeCode.ENDS_BY_LONGEST: Text(
        _("It has lived for %(value_s)s; after %(threshold_s)s it stops."), "", durations
    ),
    LifetimeCode.ENDS_BY_SCHEDULE: Text(_("It is not in use, and what is not used is stopped at this hour.")),
    LifetimeCode.ENDS_BY_BUDGET: Text(_("The GPU-hours of its team are spent.")),
    LifetimeCode.RELEASED_BY_IDLE: Text(
        _("Nothing has happened in it for %(value_s)s; after %(threshold_s)s its GPUs are released."),
        "",
        durations,
    ),
    LifetimeCode.RELEASED_BY_GPU_IDLE: Text(
        _("Its GPUs have done nothing for %(value_s)s; after %(threshold_s)s they are released."),
        "",
        durations,
    ),
    LifetimeCode.POLICY_NOT_VALID: Text(
        _("The policy cannot be kept like this."), _("Correct the fields that are named.")
    ),
    LifetimeCode.POLICY_TARGET_UNKNOWN: Text(
        _("There is no such site, pool, template, flavor or team: %(target)s."),
        _("Write site, or a kind and a short name, as in flavor:a100-full."),
    ),
    LifetimeCode.POLICY_TARGET_FIXED: Text(
        _("What a policy is for stays as it is."), _("Delete it, and make another one.")
    ),
    LifetimeCode.POLICY_TAKEN: Text(_("There is a policy for %(target)s already."), _("Change that one.")),
    LifetimeCode.POLICY_SAYS_NOTHING: Text(
        _("The policy says nothing."), _("Set one value at least, or delete it.")
    ),
    LifetimeCode.POLICY_NOT_FOUND: Text(
        _("There is no such policy."), _("See the list of those that there are.")
    ),
    LifetimeCode.POLICY_NOT_FOR_TEAM: Text(
        _("A team may only tighten: this is not a team's to set."), _("Leave it empty.")
    ),
    LifetimeCode.POLICY_NOT_FOR_HOMES: Text(
        _("Home folders belong to users in teams, not to templates or flavors."),
        _("Leave it empty here, and set it for the site, a pool or a team."),
    ),
    LifetimeCode.HOME_DELETE_NOT_DUE: Text(
        _("This home folder cannot be deleted yet."),
        _("Wait until its archive is old enough by policy and the notice to its user is over."),
    ),
    LifetimeCode.HOME_NOT_NAMED: Text(
        _("“%(given)s” is not the name of this home folder."), _("Type %(home)s.")
    ),
    LifetimeCode.POLICY_ZONE_UNKNOWN: Text(
        _("There is no time zone of this name."), _("Write one as Europe/Berlin, or UTC.")
    ),
    LifetimeCode.POLICY_START_WITHOUT_STOP: Text(
        _("An hour of starting only starts what the hour of stopping has stopped."),
        _("Set an hour of stopping, too, and another one than this."),
    ),
    LifetimeCode.POLICY_DAYS_UNKNOWN: Text(
        _("Days are mon, tue, wed, thu, fri, sat and sun."), _("Correct them.")
    ),
    LifetimeCode.POLICY_DAYS_MISSING: Text(
        _("Hours need days and a time zone."), _("Say on which days they hold, and where.")
    ),
    LifetimeCode.POLICY_HOURS_INCOMPLETE: Text(
        _("Hours of work need their begin, a later end, and the limit outside them or an hour of stopping."),
        _("Add what is missing, or leave all of them empty."),
    ),
    LifetimeCode.POLICY_HOLIDAYS_UNKNOWN: Text(
        _("Holidays are dates as 2026-12-25, at most 400."), _("Correct them.")
    ),
}
