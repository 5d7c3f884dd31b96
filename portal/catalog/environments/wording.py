"""Texts of errors about software environments, and of failed builds."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.catalog.environments.codes import EnvironmentCode
from portal.common.formatting import format_duration, format_memory
from portal.common.reasons.wording import Params, Text, listed, message_of, names_joined, reason_of


def progress_words(state: str, percent: int | None) -> str:
    """Return the progress of an environment that is not ready, such as “is being built: 40 %”."""
    if state == "building":
        if percent:
            return gettext("is being built: %(percent)d %%") % {"percent": percent}
        return gettext("is being built")
    return gettext("could not be built") if state == "failed" else gettext("has not been built yet")


def _progress(params: Params) -> Params:
    """Add `how`: such as “being built: 40 %”."""
    return {**params, "how": progress_words(params.get("state", ""), params.get("percent"))}


def _source_line(params: Params) -> Params:
    """Add `where` and `said`: the line of the source and of the log, if known."""
    line, said = params.get("source_line") or 0, str(params.get("log_line") or "")
    where = gettext(" in line %(line)d") % {"line": line} if line else ""
    return {**params, "where": where, "said": f": {said.rstrip('.')}." if said else "."}


def _missing_package(params: Params) -> Params:
    """Add `package`: the name that the resolver did not find; and `where`."""
    words = str(params.get("log_line") or "").split()
    name = words[1] if len(words) > 1 and words[0] == "Because" else ""
    return {**_source_line(params), "package": f"“{name}”" if name else gettext("of that name")}


def _installing(params: Params) -> Params:
    """Add `how`: such as “: installing, 40 of 62, about 2 min”; empty before the build starts."""
    stages = {
        "resolving": gettext("resolving versions"),
        "downloading": gettext("downloading"),
        "installing": gettext("installing"),
        "compiling": gettext("compiling"),
        "checking": gettext("checking"),
    }
    words = [stages[stage]] if (stage := params.get("stage")) in stages else []
    if words and params.get("total"):
        words[0] += gettext(" %(done)d of %(total)d") % params
    if left_s := params.get("left_s"):
        words.append(gettext("about %(time)s") % {"time": format_duration(left_s)})
    return {**params, "how": ": " + ", ".join(words) if words else ""}


def _not_installed(params: Params) -> Params:
    """Add `reason`: the failure of its build."""
    reason = reason_of(params.get("failure") or {})
    return {**params, "reason": f" {message_of(reason)}" if reason is not None else ""}


def _users(params: Params) -> Params:
    """Add `who`: its users with the first names."""
    parts = []
    for name, one, many in (
        ("workspaces", "%(count)d workspace", "%(count)d workspaces"),
        ("templates", "%(count)d template", "%(count)d templates"),
    ):
        names = list(params.get(name, ()))
        if names:
            count = ngettext(one, many, len(names)) % {"count": len(names)}
            shown = ", ".join(names[:5]) + ("…" if len(names) > 5 else "")
            parts.append(f"{count} ({shown})")
    return {**params, "who": names_joined(parts)}


def _folders(params: Params) -> Params:
    """Add `there`: the folders on nodes."""
    known = list(params.get("known", ()))
    there = gettext(" Nodes have: %(folders)s.") % {"folders": ", ".join(known[:10])} if known else ""
    return {**params, "there": there}


def _limit(params: Params) -> Params:
    return {**params, "limit": format_memory(params["limit_mib"])}


_AGAIN = _("It is tried again by itself.")
_MEND = _("Mend the list and build it again.")

TEXTS: dict[StrEnum, Text] = {
    EnvironmentCode.BAD_PYTHON: Text(_("Choose one of: %(known)s."), prepare=listed("known")),
    EnvironmentCode.BEING_INSTALLED: Text(
        _("“%(environment)s” is being installed on this pool%(how)s."),
        _("It starts by itself when that is done."),
        prepare=_installing,
    ),
    EnvironmentCode.BUILD_CANCELLED: Text(
        _("The build was cancelled."), _("Build it again when you want it.")
    ),
    EnvironmentCode.BUILD_DISK_FULL: Text(
        _("The disk of %(node)s has no room for it."),
        _("An operator makes room there; it is tried again by itself."),
    ),
    EnvironmentCode.BUILD_FAILED: Text(
        _("A package could not be installed%(where)s%(said)s"), _MEND, prepare=_source_line
    ),
    EnvironmentCode.BUILD_HASH_MISMATCH: Text(
        _("The package index delivered a file that differs from the lock%(where)s%(said)s"),
        _("Update the lock, or check the index."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_PYTHON: Text(
        _("Python %(python)s is not there on %(node)s%(said)s"),
        _("Choose another Python, or have an operator install it on the node."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_SUCH_FOLDER: Text(
        _("%(node)s has no environment there that it may use%(said)s"),
        _("Name the folder in BERTH_ENVIRONMENT_FOLDERS on the node; it is looked at again by itself."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_SUCH_PACKAGE: Text(
        _("The package index has no package %(package)s%(where)s."),
        _("Correct its name in the list, or take it out, and build it again."),
        prepare=_missing_package,
    ),
    EnvironmentCode.BUILD_RESOLUTION_FAILED: Text(
        _("The packages do not go together%(where)s%(said)s"), _MEND, prepare=_source_line
    ),
    EnvironmentCode.BUILD_TIMED_OUT: Text(_("The build took longer than it may."), _AGAIN),
    EnvironmentCode.BUILD_TOO_LARGE: Text(
        _("It is larger than the %(limit)s that an environment may take."),
        _("Leave packages out, or have an operator raise BERTH_ENVIRONMENT_MAX_MIB."),
        prepare=_limit,
    ),
    EnvironmentCode.BUILD_UNFORESEEN: Text(
        _("The build met an error on %(node)s%(said)s"), _AGAIN, prepare=_source_line
    ),
    EnvironmentCode.BUILD_UNSOUND: Text(
        _("What %(node)s says it has built is not what it was asked for."),
        _("An operator looks at that node; it is tried again by itself."),
    ),
    EnvironmentCode.BUILD_UV_MISSING: Text(
        _("%(node)s cannot build environments: the program uv is missing."),
        _("An operator installs it there; it is tried again by itself."),
    ),
    EnvironmentCode.CURATED_KEPT: Text(
        _("“%(name)s” comes with Berth and cannot be deleted."), _("Switch it off instead.")
    ),
    EnvironmentCode.ENVIRONMENT_IN_USE: Text(
        _("“%(name)s” is still used by %(who)s."),
        _("Name a successor and wait until nothing uses it, or switch it off."),
        prepare=_users,
    ),
    EnvironmentCode.FOLDER_NOT_THERE: Text(
        _("No node has an environment %(folder)s that it may use.%(there)s"),
        _("Name the folder in BERTH_ENVIRONMENT_FOLDERS on its nodes, or choose one that is there."),
        prepare=_folders,
    ),
    EnvironmentCode.FOLDER_NOT_VALID: Text(
        _("“%(folder)s” is no path of a folder."), _("Write it from the root on, as /opt/conda/envs/ml.")
    ),
    EnvironmentCode.INDEX_UNREACHABLE: Text(
        _("%(node)s gets no whole answer from the package index%(said)s"),
        _("An operator checks its network or names a mirror; it is tried again by itself."),
        prepare=_source_line,
    ),
    EnvironmentCode.INSTALLED_ON_NODES: Text(
        _("“%(name)s” is what is installed on each node: there is nothing to build."),
        _("Make an environment of your own."),
    ),
    EnvironmentCode.LACKS_PROGRAM: Text(
        _("“%(environment)s” has no %(program)s, which %(template)s needs."),
        _("Choose another environment, or have it built with that package."),
    ),
    EnvironmentCode.LINE_NOT_VALID: Text(
        _("Line %(line)d cannot be used: %(text)s."),
        _(
            "Write one package on each line, as numpy or numpy>=2.1; options, addresses and files are not"
            " taken."
        ),
    ),
    EnvironmentCode.LOCK_EMPTY: Text(_("The lock names no package."), _("Paste a whole lock.")),
    EnvironmentCode.NAME_TAKEN: Text(
        _("There is an environment “%(slug)s” already."), _("Choose another name.")
    ),
    EnvironmentCode.NODE_DID_NOT_ANSWER: Text(_("%(node)s does not answer for the build."), _AGAIN),
    EnvironmentCode.NOTHING_ASKED_FOR: Text(_("It asks for no package."), _("Name at least one.")),
    EnvironmentCode.NOTHING_TO_CANCEL: Text(_("The build has ended already."), _("Look at how it ended.")),
    EnvironmentCode.NOT_INSTALLED: Text(
        _("“%(environment)s” could not be installed.%(reason)s"),
        _("Ask an operator to look at it: Environments, %(environment)s."),
        prepare=_not_installed,
    ),
    EnvironmentCode.NOT_READY: Text(
        _("“%(environment)s” %(how)s."),
        _("Choose another environment for now, or wait until it is ready."),
        prepare=_progress,
    ),
    EnvironmentCode.NOT_VALID: Text(_("The environment is not valid."), _("Mend the fields that are named.")),
    EnvironmentCode.NO_FOLDER_NAMED: Text(
        _("It names no folder."), _("Choose one that nodes have, or write its path.")
    ),
    EnvironmentCode.NO_SUCH_BUILD: Text(_("There is no such build."), _("List those that there are.")),
    EnvironmentCode.NO_SUCH_ENVIRONMENT: Text(
        _("There is no such environment."), _("List those that there are.")
    ),
    EnvironmentCode.NO_SUCH_VERSION: Text(_("There is no such version."), _("List those that there are.")),
    EnvironmentCode.ON_ITS_WAY: Text(
        _("“%(environment)s” %(how)s."), _("It starts by itself when a node has it."), prepare=_progress
    ),
    EnvironmentCode.PYPROJECT_NOT_READ: Text(
        _("This is no pyproject.toml with dependencies: %(problem)s."),
        _("Paste one with a list “dependencies” in “[project]”."),
    ),
    EnvironmentCode.SOURCE_TOO_LONG: Text(_("It is longer than %(limit)d KiB."), _("Shorten it.")),
    EnvironmentCode.SUCCESSOR_NOT_VALID: Text(
        _("“%(successor)s” cannot come after it."),
        _("Choose another environment that the same people may use."),
    ),
    EnvironmentCode.SWITCHED_OFF: Text(
        _("“%(environment)s” is switched off."), _("Choose another environment.")
    ),
    EnvironmentCode.TOO_MANY: Text(_("Limit of %(limit)d environments reached."), _("Delete one first.")),
    EnvironmentCode.VERSION_NOT_READY: Text(
        _("Version %(number)d is not ready."), _("Build it first, or choose one that is.")
    ),
}
