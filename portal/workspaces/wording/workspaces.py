"""Texts of workspace reasons: errors, and why a workspace failed or is queued again."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text, join_names, joined_lists, reason_of, sentence_of
from portal.workspaces.codes import WorkspaceCode

STATE_WORDS = {
    "pending": _("queued"),
    "provisioning": _("starting"),
    "running": _("running"),
    "stopping": _("stopping"),
    "stopped": _("stopped"),
    "terminating": _("ending"),
    "terminated": _("deleted"),
    "failed": _("failed"),
}
"""Workspace states as words within a sentence."""


def _state(params: Params) -> Params:
    return {**params, "state": STATE_WORDS[params["state"]]}


def _cause(params: Params) -> Params:
    """Format `cause`, which is a reason as JSON."""
    reason = reason_of(params["cause"])
    return {**params, "cause": sentence_of(reason) if reason is not None else ""}


def _exit_code(params: Params) -> Params:
    exit_code = params.get("exit_code")
    ending = "" if exit_code is None else gettext(" (exit code %(code)s)") % {"code": exit_code}
    return {**params, "ending": ending}


def _device_lost(params: Params) -> Params:
    """Format lost `devices`. `replaced` means that nothing had started, so other devices are allocated."""
    values = {"names": join_names(params["devices"])}
    count = len(params["devices"])
    if params.get("replaced"):
        text = ngettext(
            "%(names)s has disappeared. The workspace is queued for another one.",
            "%(names)s have disappeared. The workspace is queued for others.",
            count,
        )
        return {"text": text % values, "next": ""}
    text = ngettext(
        "%(names)s has disappeared: the driver no longer lists it.",
        "%(names)s have disappeared: the driver no longer lists them.",
        count,
    )
    following = gettext("Start the workspace again to get another device. Its files are kept.")
    return {"text": text % values, "next": following}


def _format_names(params: Params) -> Params:
    return {**params, "names": join_names(params["names"])}


TEXTS: dict[StrEnum, Text] = {
    WorkspaceCode.CHANGED_MEANWHILE: Text(
        _("Another request changed the workspace at the same time."), _("Reload the page, then try again.")
    ),
    WorkspaceCode.EXPECTED_BY_END: Text(
        _("%(name)s has an end time, so its expected duration cannot be changed."),
        _("Extend the workspace, or stop it when you are done."),
    ),
    WorkspaceCode.EXPECTED_OUT_OF_RANGE: Text(_("Enter a duration from 1 minute to 30 days.")),
    WorkspaceCode.FLAVOR_TWICE: Text(_("%(flavor)s is listed twice."), _("List each size once.")),
    WorkspaceCode.FLAVORS_MIXED: Text(
        _("Only some of the sizes are simulated."), _("List simulated sizes only, or none.")
    ),
    WorkspaceCode.FLAVORS_TOO_MANY: Text(_("List up to %(max)d sizes.")),
    WorkspaceCode.START_WITHIN_OUT_OF_RANGE: Text(_("Enter a wait from 0 to %(max)d minutes.")),
    WorkspaceCode.HOME_IS_PRIVATE: Text(
        _("The home folder of %(owner)s is private."), _("Ask %(owner)s to share the files that you need.")
    ),
    WorkspaceCode.LOG_NOT_READ: Text(_("The log could not be read. %(message)s"), _("Try again later.")),
    WorkspaceCode.NOTHING_INSTALLED: Text(
        _("%(name)s has no packages beyond those of its environment."),
        _("Install packages in the workspace first, or create an environment from a list."),
    ),
    WorkspaceCode.PACKAGES_NOT_READ: Text(
        _("The installed packages could not be read. %(message)s"), _("Try again later.")
    ),
    WorkspaceCode.NAME_TAKEN: Text(
        _("You already have a workspace “%(name)s” in %(team)s."),
        _("Open that workspace, or choose another name."),
    ),
    WorkspaceCode.NODE_SILENT: Text(
        _("The node did not respond in time."),
        _("Try again in a few seconds. If the problem persists, contact an operator."),
    ),
    WorkspaceCode.NOT_POSSIBLE_NOW: Text(
        _("The workspace is %(state)s, so this action is not available."),
        _("Reload the page to see the available actions."),
        prepare=_state,
    ),
    WorkspaceCode.NOT_RUNNING: Text(
        _("%(name)s is %(state)s."), _("Start the workspace, or wait until it is running."), prepare=_state
    ),
    WorkspaceCode.NOT_STARTABLE: Text(
        _("%(name)s is %(state)s and cannot be started now."),
        _("Wait until it is stopped, or create another workspace."),
        prepare=_state,
    ),
    WorkspaceCode.CHANGED_SINCE_PREVIEW: Text(
        _("%(name)s changed after the preview and is now %(state)s."),
        _("Select it again to see what would happen now."),
        prepare=_state,
    ),
    WorkspaceCode.MESSAGE_EMPTY: Text(_("The message is empty."), _("Enter a message.")),
    WorkspaceCode.MESSAGE_TOO_LONG: Text(
        _("The message has %(length)d characters. The limit is %(maximum)d."), _("Enter a shorter text.")
    ),
    WorkspaceCode.TOO_MANY_MESSAGES: Text(
        _("You have sent too many messages within an hour."), _("Try again in %(seconds)d seconds.")
    ),
    WorkspaceCode.OWNER_READS_NOTHING: Text(
        _("%(username)s is a service account and does not read messages."),
        _("Write to an owner of its team."),
    ),
    WorkspaceCode.TOO_MANY_STARTS: Text(
        _("You have started too many workspaces in a short time."), _("Try again in %(seconds)d seconds.")
    ),
    WorkspaceCode.NOT_CHANGEABLE: Text(
        _("%(name)s is %(state)s and cannot be changed now."),
        _("Wait until it is stopped, then try again."),
        prepare=_state,
    ),
    WorkspaceCode.NOT_RENAMEABLE: Text(
        _("%(name)s is %(state)s and cannot be renamed now."),
        _("Stop the workspace, then rename it."),
        prepare=_state,
    ),
    WorkspaceCode.STOPS_ALREADY: Text(_("%(name)s is stopping or has already stopped.")),
    WorkspaceCode.NOT_STOPPABLE: Text(
        _("%(name)s is %(state)s and cannot be stopped."),
        _("Reload the page to see the available actions."),
        prepare=_state,
    ),
    WorkspaceCode.STOPPED_HOME_FULL: Text(
        _("The home folder was full: %(amounts)s."),
        _("Start the workspace and delete files, or ask an operator for more space."),
    ),
    WorkspaceCode.OWNER_DEACTIVATED: Text(
        _("The account %(username)s was deactivated."), _("Ask an administrator to reactivate it.")
    ),
    WorkspaceCode.OWNER_LEFT_TEAM: Text(
        _("%(username)s is no longer a member of %(team)s."), _("Ask an owner of the team.")
    ),
    WorkspaceCode.NO_SUCH_WORKSPACE: Text(_("Workspace not found."), _("Check your list of workspaces.")),
    WorkspaceCode.NOT_VALID: Text(
        _("The workspace was not saved because some fields are not valid."), _("Correct the marked fields.")
    ),
    WorkspaceCode.NOT_VISIBLE: Text(
        _("Workspace not found, or you do not have access to it."), _("Check your list of workspaces.")
    ),
    WorkspaceCode.ONLY_ITS_OPERATORS: Text(
        _("Only %(owner)s, owners of the team and operators can do this."), _("Ask %(owner)s.")
    ),
    WorkspaceCode.ONLY_ITS_USER: Text(
        _("Only %(owner)s can open this workspace."), _("Ask %(owner)s to share the files instead.")
    ),
    WorkspaceCode.PRIORITY_NOT_ALLOWED: Text(
        _("Only owners of %(team)s and operators can set a priority above 0."),
        _("Leave the priority at 0, or ask an owner of the team."),
    ),
    WorkspaceCode.PRIORITY_OUT_OF_RANGE: Text(_("Enter a priority from %(min)d to %(max)d.")),
    WorkspaceCode.SIMULATED: Text(
        _("This workspace is simulated. It has no app and no files."),
        _("Choose a size that is not simulated."),
    ),
    WorkspaceCode.TICKET_NOT_ISSUED: Text(
        _("Redis is not responding, so the portal cannot sign you in to the workspace."),
        _("Try again in a few seconds."),
    ),
    WorkspaceCode.SOME_CHANGED_MEANWHILE: Text(
        _("Another request changed some of the workspaces at the same time."),
        _("Reload the page, then try again."),
    ),
    WorkspaceCode.APP_EXITED: Text(
        _("%(template)s exited unexpectedly%(ending)s."),
        _("Check the log, then start the workspace again."),
        prepare=_exit_code,
    ),
    WorkspaceCode.DEVICE_LOST: Text("%(text)s", "%(next)s", prepare=_device_lost),
    WorkspaceCode.ENGINE_REQUEUED: Text(
        _("%(pool)s preempted the workspace and queued it again."),
        _("The workspace starts again without further action. Its files are kept."),
    ),
    WorkspaceCode.LOST: Text(
        _("The processes of the workspace have disappeared, for example because the machine restarted."),
        _("Start the workspace again. Its files are kept."),
    ),
    WorkspaceCode.MACHINE_GONE: Text(
        _("%(node)s was revoked, so the portal can no longer reach or monitor this workspace."),
        _("Ask an operator about its files on %(node)s."),
    ),
    WorkspaceCode.MACHINE_REMOVED: Text(
        _("%(node)s was removed while the workspace was on it."),
        _("Start the workspace again. If its home folder is lost, create one on the Home folders page."),
    ),
    WorkspaceCode.NO_SUCH_HOME: Text(_("Home folder not found."), _("Check the list of home folders.")),
    # A driver's own report: `code` is its code, `text` its message (`provisioning.errors`).
    WorkspaceCode.REPORTED: Text("%(text)s"),
    WorkspaceCode.NOT_STARTED_IN_TIME: Text(
        _("The workspace did not start within %(limit_s)d s: %(cause)s"), prepare=_cause
    ),
    WorkspaceCode.START_TIMEOUT: Text(
        _("%(template)s did not respond within %(limit_s)d s."),
        _("Check the log, then start the workspace again."),
    ),
    WorkspaceCode.LINES_INVALID: Text(
        _("The number of lines is not valid."), _("Choose a number from 1 to %(maximum)d.")
    ),
    WorkspaceCode.VERSION_CHANGED: Text(
        _("%(name)s changed after you read it and is now %(label)s."),
        _("Read it again, then retry with its new ETag."),
    ),
    WorkspaceCode.TEAM_MISSING: Text(
        _("A workspace must be charged to a team."),
        _("Choose one of: %(known)s."),
        prepare=joined_lists("known"),
    ),
    WorkspaceCode.IN_NO_TEAM: Text(
        _("You are not a member of any team, and every workspace is charged to a team."),
        _("Ask an owner of a team to add you."),
    ),
    WorkspaceCode.NO_GPU_TO_RELEASE: Text(
        _("%(name)s has no GPUs to release."), _("Stop the workspace to free its other resources.")
    ),
    WorkspaceCode.NO_GPU_TO_ATTACH: Text(
        _("%(name)s has no released GPUs to attach."), _("Resize the workspace to a size with GPUs.")
    ),
    WorkspaceCode.GPU_NOT_CHANGEABLE: Text(
        _("The GPUs of %(name)s cannot change while the workspace starts, stops or is deleted."),
        _("Wait until it is running or stopped, then try again."),
    ),
    WorkspaceCode.NOT_RESIZABLE_NOW: Text(
        _("%(name)s cannot be resized while it starts, stops or is deleted."),
        _("Wait until it is running or stopped, then try again."),
    ),
    WorkspaceCode.FILES_IN_ANOTHER_POOL: Text(
        _("%(flavor)s is not available in %(pool)s, where the files of %(name)s are."),
        _("Choose a size of %(pool)s, or create another workspace."),
    ),
    WorkspaceCode.MACHINE_NOT_NAMED: Text(
        _("“%(given)s” is not the name of this machine."), _("Type %(node)s to confirm.")
    ),
    WorkspaceCode.NODE_HAS_HOMES: Text(
        ngettext_lazy(
            "%(count)d home folder exists only on %(node)s.",
            "%(count)d home folders exist only on %(node)s.",
            "count",
        ),
        _("Copy the files that you need, then choose “Remove” on the pool's list of machines."),
    ),
    WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM: Text(
        _("Workspaces of %(team)s cannot use the environment “%(environment)s”."),
        _("Choose another environment or team."),
    ),
    WorkspaceCode.USER_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(username)s still has %(count)d workspace: %(names)s.",
            "%(username)s still has %(count)d workspaces: %(names)s.",
            "count",
        ),
        _("Choose to delete the workspaces too (API: workspaces=delete). Home folders are kept by default."),
        prepare=joined_lists("names"),
    ),
    WorkspaceCode.ENTRY_IN_USE: Text(
        ngettext_lazy(
            "“%(name)s” is in use by %(count)s workspace: %(names)s.",
            "“%(name)s” is in use by %(count)s workspaces, such as %(names)s.",
            "count",
        ),
        _("Disable it so that nobody chooses it, and delete it once these workspaces are deleted."),
        prepare=_format_names,
    ),
}
