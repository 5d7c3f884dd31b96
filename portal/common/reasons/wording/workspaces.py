"""Texts of the refusals about workspaces, and of why they failed or wait anew."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.common.formatting import format_memory
from portal.common.reasons.codes import HomeMoveCode, WorkspaceCode
from portal.common.reasons.wording import Params, Text, names_joined, reason_of, sentence_of

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
"""The states of a workspace inside a sentence."""


def _room(params: Params) -> Params:
    needed, free = (format_memory(params[name]) for name in ("needed_mib", "free_mib"))
    return {**params, "needed": needed, "free": free}


def _homes_in_use(params: Params) -> Params:
    text = ngettext(
        "Workspaces use the %(count)d home folder that is left.",
        "Workspaces use the %(count)d home folders that are left.",
        params["count"],
    )
    return {**params, "text": text % {"count": params["count"]}}


def _state(params: Params) -> Params:
    return {**params, "state": STATE_WORDS[params["state"]]}


def _cause(params: Params) -> Params:
    """`cause` is a reason in its JSON form; in older rows it is text."""
    cause = params["cause"]
    if isinstance(cause, str):
        return params
    reason = reason_of(cause)
    return {**params, "cause": sentence_of(reason) if reason is not None else ""}


def _exit_code(params: Params) -> Params:
    exit_code = params.get("exit_code")
    ending = "" if exit_code is None else gettext(" (exit code %(code)s)") % {"code": exit_code}
    return {**params, "ending": ending}


def _device_lost(params: Params) -> Params:
    """`devices` have disappeared; `replaced` where nothing had been started and others are taken."""
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


def _check_failed(params: Params) -> Params:
    """`devices` failed their checks before hand-out, or, with `unknown`, could not be checked."""
    pattern = (
        gettext("%(device)s could not be checked")
        if params.get("unknown")
        else gettext("%(device)s failed its check")
    )
    return {"what": gettext(" and ").join(pattern % {"device": name} for name in params["devices"])}


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
    WorkspaceCode.CHECK_FAILED: Text(_("%(what)s; another one is taken."), prepare=_check_failed),
    WorkspaceCode.REPARTITION_FAILED: Text(
        _("The MIG layout of %(device)s could not be changed: %(problem)s It waits for another place.")
    ),
    WorkspaceCode.SHARE_WITHDRAWN: Text(
        _("The GPU of which it got a part is scrubbed first, as somebody has left it. It waits again.")
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
    HomeMoveCode.ALREADY_EVACUATED: Text(
        _("The home folders of %(node)s are being moved to %(to)s."),
        _("Wait until that is over, or cancel it."),
    ),
    HomeMoveCode.HOMES_IN_USE: Text(
        "%(text)s",
        _("Drain the machine to have their workspaces stop; the moves go on by themselves."),
        prepare=_homes_in_use,
    ),
    HomeMoveCode.HOMES_NOT_APART: Text(
        _("The machines of %(pool)s do not keep home folders each for itself: nothing has to be moved.")
    ),
    HomeMoveCode.NO_HOMES_THERE: Text(_("No home folder that could be moved lies on %(node)s.")),
    HomeMoveCode.NO_SUCH_EVACUATION: Text(
        _("There is no such move of home folders."), _("Look at the page of the machine.")
    ),
    HomeMoveCode.NO_TARGETS: Text(
        _("No other machine of %(pool)s takes home folders now."),
        _("One has to be online and take work: add one, or put one back."),
    ),
    HomeMoveCode.ALREADY_MOVING: Text(
        _("The home folder is being moved to %(node)s, or what that has left is being taken away."),
        _("Wait until that is over, or cancel it."),
    ),
    HomeMoveCode.ALREADY_THERE: Text(_("The home folder lies on %(node)s already.")),
    HomeMoveCode.ENDED: Text(_("The move has ended.")),
    HomeMoveCode.HOME_BEING_MOVED: Text(
        _("The home folder is being moved to %(node)s."), _("Wait until that is over.")
    ),
    HomeMoveCode.IN_USE: Text(
        _("Workspaces use the home folder."), _("Stop them first: a home is moved while nothing uses it.")
    ),
    HomeMoveCode.NODE_GONE: Text(_("%(node)s has left or was removed.")),
    HomeMoveCode.NO_SUCH_MOVE: Text(_("There is no such move."), _("Look at the list of home folders.")),
    HomeMoveCode.NO_SUCH_TARGET: Text(
        _("No home folder can go to “%(node)s”."),
        _("Choose another machine of the pool that is online and takes work."),
    ),
    HomeMoveCode.OLD_SILENT: Text(_("%(node)s, where the home folder lies, does not answer.")),
    HomeMoveCode.NEW_SILENT: Text(_("%(node)s, where the home folder goes, does not answer.")),
    HomeMoveCode.NO_ROOM: Text(
        _("The home folder needs %(needed)s more on %(node)s, where %(free)s may be used."),
        _("Make room there, or choose another machine."),
        prepare=_room,
    ),
    HomeMoveCode.REPORTED: Text("%(text)s"),
    WorkspaceCode.NO_SUCH_HOME: Text(
        _("There is no such home folder."), _("Look at the list of home folders.")
    ),
    # What a driver says of itself: `code` is its code, `text` its sentence (`provisioning.errors`).
    WorkspaceCode.REPORTED: Text("%(text)s"),
    WorkspaceCode.NOT_STARTED_IN_TIME: Text(
        _("It could not be started within %(limit_s)d s: %(cause)s"), prepare=_cause
    ),
    WorkspaceCode.START_TIMEOUT: Text(
        _("%(template)s did not answer within %(limit_s)d s."), _("Look at the log below, then try again.")
    ),
}
