"""Texts of the reasons about workspaces: errors, and why one failed or is queued again."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from portal.common.reasons.wording import Params, Text, listed, names_joined, reason_of, sentence_of
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
    """Format lost `devices`; `replaced` means that nothing had been started, so others are allocated."""
    values = {"names": names_joined(params["devices"])}
    count = len(params["devices"])
    if params.get("replaced"):
        text = ngettext(
            "%(names)s has disappeared; another one is taken.",
            "%(names)s have disappeared; another one is taken.",
            count,
        )
        return {"text": text % values, "next": ""}
    text = ngettext(
        "%(names)s has disappeared: the driver does not list it any more.",
        "%(names)s have disappeared: the driver does not list them any more.",
        count,
    )
    following = gettext("Start it again to get another device; its files are kept.")
    return {"text": text % values, "next": following}


def _format_names(params: Params) -> Params:
    return {**params, "names": names_joined(params["names"])}


TEXTS: dict[StrEnum, Text] = {
    WorkspaceCode.CHANGED_MEANWHILE: Text(
        _("The workspace changed at the same moment."), _("Reload the page and look at its state.")
    ),
    WorkspaceCode.EXPECTED_BY_END: Text(
        _("%(name)s has an end, which says for how long it is needed."),
        _("Extend it, or stop it when you are done."),
    ),
    WorkspaceCode.EXPECTED_OUT_OF_RANGE: Text(_("Say from one minute to 30 days.")),
    WorkspaceCode.HOME_IS_PRIVATE: Text(
        _("What is in the home folder of %(owner)s is shown to nobody else."),
        _("Ask %(owner)s to share what you need."),
    ),
    WorkspaceCode.LOG_NOT_READ: Text("%(message)s", _("Try again later.")),
    WorkspaceCode.NOTHING_INSTALLED: Text(
        _("You have installed nothing on top of the environment of %(name)s."),
        _("Install packages in the workspace first, or make an environment from a list."),
    ),
    WorkspaceCode.PACKAGES_NOT_READ: Text("%(message)s", _("Try again later.")),
    WorkspaceCode.NAME_TAKEN: Text(
        _("You already have a workspace “%(name)s” in %(team)s."),
        _("Open that one, or choose another name."),
    ),
    WorkspaceCode.NODE_SILENT: Text(
        _("The node did not answer in time."),
        _("Try again in a few seconds; if this stays, tell an operator."),
    ),
    WorkspaceCode.NOT_POSSIBLE_NOW: Text(
        _("The workspace is %(state)s, so this is not possible now."),
        _("Reload the page and choose what is offered there."),
        prepare=_state,
    ),
    WorkspaceCode.NOT_RUNNING: Text(
        _("%(name)s is %(state)s."), _("Start it, or wait until it is ready."), prepare=_state
    ),
    WorkspaceCode.NOT_STARTABLE: Text(
        _("%(name)s is %(state)s and cannot be started now."),
        _("Wait until it has come to rest, then try again."),
        prepare=_state,
    ),
    WorkspaceCode.TOO_MANY_STARTS: Text(
        _("You have started as many workspaces as one user may in this time."),
        _("Try again in %(seconds)d seconds."),
    ),
    WorkspaceCode.NOT_CHANGEABLE: Text(
        _("%(name)s is %(state)s and cannot be changed now."),
        _("Wait until it has come to rest, then try again."),
        prepare=_state,
    ),
    WorkspaceCode.NOT_RENAMEABLE: Text(
        _("%(name)s is %(state)s, and what runs keeps its name."),
        _("Stop it, rename it, and start it again."),
        prepare=_state,
    ),
    WorkspaceCode.NOT_STOPPABLE: Text(
        _("%(name)s is %(state)s and cannot be stopped now."),
        _("Wait until it has come to rest, then try again."),
        prepare=_state,
    ),
    WorkspaceCode.NO_SUCH_WORKSPACE: Text(
        _("There is no such workspace."), _("Look at your list of workspaces.")
    ),
    WorkspaceCode.NOT_VALID: Text(_("The workspace cannot be made like this.")),
    WorkspaceCode.NOT_VISIBLE: Text(
        _("There is no such workspace, or it is not yours to see."), _("Look at your list of workspaces.")
    ),
    WorkspaceCode.ONLY_ITS_OPERATORS: Text(
        _("Only its user, an owner of its team or an operator may do this."), _("Ask %(owner)s.")
    ),
    WorkspaceCode.ONLY_ITS_USER: Text(
        _("Only its own user may work in a workspace."), _("Ask %(owner)s to share the files instead.")
    ),
    WorkspaceCode.PRIORITY_NOT_ALLOWED: Text(
        _("Only an owner of %(team)s or an operator gives a priority above 0."),
        _("Leave the priority out, or ask an owner."),
    ),
    WorkspaceCode.PRIORITY_OUT_OF_RANGE: Text(_("Choose from %(min)d to %(max)d.")),
    WorkspaceCode.SIMULATED: Text(
        _("This is a simulated workspace: nothing runs behind it."),
        _("Choose a flavor that is not simulated."),
    ),
    WorkspaceCode.TICKET_NOT_ISSUED: Text(
        _("The portal's message store does not answer, so you cannot be signed in to the workspace."),
        _("Try again in a few seconds."),
    ),
    WorkspaceCode.SOME_CHANGED_MEANWHILE: Text(
        _("Some of the workspaces changed at the same moment."), _("Try again.")
    ),
    WorkspaceCode.APP_EXITED: Text(
        _("%(template)s ended by itself%(ending)s."),
        _("Look at the log below, then try again."),
        prepare=_exit_code,
    ),
    WorkspaceCode.DEVICE_LOST: Text("%(text)s", "%(next)s", prepare=_device_lost),
    WorkspaceCode.LOST: Text(
        _("Its processes have disappeared, as after a restart of the machine."),
        _("Try it again: your files are still there."),
    ),
    WorkspaceCode.MACHINE_GONE: Text(
        _("Its machine, %(node)s, was revoked: nobody can enter it, or see whether it goes on."),
        _("Ask an operator about its files, which are on that machine."),
    ),
    WorkspaceCode.MACHINE_REMOVED: Text(
        _("Its machine, %(node)s, was removed: nothing of it counts any more."),
        _("Start it again; where its home folder was there, you are asked about that first."),
    ),
    WorkspaceCode.NO_SUCH_HOME: Text(
        _("There is no such home folder."), _("Look at the list of home folders.")
    ),
    # A driver's own report: `code` is its code, `text` its message (`provisioning.errors`).
    WorkspaceCode.REPORTED: Text("%(text)s"),
    WorkspaceCode.NOT_STARTED_IN_TIME: Text(
        _("It could not be started within %(limit_s)d s: %(cause)s"), prepare=_cause
    ),
    WorkspaceCode.START_TIMEOUT: Text(
        _("%(template)s did not answer within %(limit_s)d s."), _("Look at the log below, then try again.")
    ),
    WorkspaceCode.LINES_INVALID: Text(
        _("The number of lines is not valid."), _("Choose a number from 1 to %(maximum)d.")
    ),
    WorkspaceCode.VERSION_CHANGED: Text(
        _("%(name)s has changed since you opened it. It is %(label)s now."), _("Reload it, then try again.")
    ),
    WorkspaceCode.TEAM_MISSING: Text(
        _("Say which team pays."), _("Choose one of: %(known)s."), prepare=listed("known")
    ),
    WorkspaceCode.IN_NO_TEAM: Text(
        _("You are in no team, and every workspace is charged to one."),
        _("Ask an owner of a team to add you."),
    ),
    WorkspaceCode.NO_GPU_TO_RELEASE: Text(
        _("%(name)s has no GPUs to release."), _("Stop it to free what it has.")
    ),
    WorkspaceCode.NO_GPU_TO_ATTACH: Text(
        _("%(name)s has released no GPUs."), _("Start another one of a flavor with GPUs.")
    ),
    WorkspaceCode.GPU_NOT_CHANGEABLE: Text(
        _("%(name)s is on its way from one state to another, so its GPUs stay as they are."),
        _("Wait until it runs or has stopped, then try again."),
    ),
    WorkspaceCode.NOT_RESIZABLE_NOW: Text(
        _("%(name)s is on its way from one state to another, so its size stays as it is."),
        _("Wait until it runs or has stopped, then try again."),
    ),
    WorkspaceCode.FILES_IN_ANOTHER_POOL: Text(
        _("%(flavor)s cannot be had in %(pool)s, where the files of %(name)s are."),
        _("Choose a flavor of that pool, or start another workspace."),
    ),
    WorkspaceCode.MACHINE_NOT_NAMED: Text(
        _("“%(given)s” is not its name."), _("Type %(node)s to say that you mean this machine.")
    ),
    WorkspaceCode.NODE_HAS_HOMES: Text(
        ngettext_lazy(
            "%(count)d home folder lies only on %(node)s.",
            "%(count)d home folders lie only on %(node)s.",
            "count",
        ),
        _("Copy what is needed; “Remove” on its pool's page says what is given up."),
    ),
    WorkspaceCode.ENVIRONMENT_NOT_FOR_TEAM: Text(
        _("“%(environment)s” is not for workspaces of %(team)s."), _("Choose another environment or team.")
    ),
    WorkspaceCode.USER_HAS_WORKSPACES: Text(
        ngettext_lazy(
            "%(username)s still has %(count)d workspace: %(names)s.",
            "%(username)s still has %(count)d workspaces: %(names)s.",
            "count",
        ),
        _("Say that they shall be deleted too; files in home folders stay unless you say otherwise."),
        prepare=listed("names"),
    ),
    WorkspaceCode.ENTRY_IN_USE: Text(
        ngettext_lazy(
            "“%(name)s” is in use by %(count)s workspace: %(names)s.",
            "“%(name)s” is in use by %(count)s workspaces, such as %(names)s.",
            "count",
        ),
        _("Switch it off, so that nobody chooses it any more, and delete it when they are gone."),
        prepare=_format_names,
    ),
}
