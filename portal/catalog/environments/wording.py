"""Texts of errors about software environments, and of failed builds."""

from __future__ import annotations

from enum import StrEnum

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from portal.catalog.environments.codes import EnvironmentCode
from portal.common.formatting import format_duration, format_memory
from portal.common.reasons.wording import Params, Text, join_names, joined_lists, message_of, reason_of


def progress_text(state: str, percent: int | None) -> str:
    """Return the progress of an environment that is not ready, such as “is being built: 40 %”."""
    if state == "building":
        if percent:
            return gettext("is being built: %(percent)d %%") % {"percent": percent}
        return gettext("is being built")
    return gettext("could not be built") if state == "failed" else gettext("has not been built yet")


def _progress(params: Params) -> Params:
    """Add `how`: a state such as “is being built: 40 %”."""
    return {**params, "how": progress_text(params.get("state", ""), params.get("percent"))}


def _source_line(params: Params) -> Params:
    """Add `where` and `said`: the source line and the log line, if known."""
    line, log_line = params.get("source_line") or 0, str(params.get("log_line") or "")
    where = gettext(" in line %(line)d") % {"line": line} if line else ""
    return {**params, "where": where, "said": f": {log_line.rstrip('.')}." if log_line else "."}


def _missing_package(params: Params) -> Params:
    """Add `package`, the name that the resolver did not find, and `where`."""
    tokens = str(params.get("log_line") or "").split()
    name = tokens[1] if len(tokens) > 1 and tokens[0] == "Because" else ""
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
    parts = [stages[stage]] if (stage := params.get("stage")) in stages else []
    if parts and params.get("total"):
        parts[0] += gettext(" %(done)d of %(total)d") % params
    if left_s := params.get("left_s"):
        parts.append(gettext("about %(time)s") % {"time": format_duration(left_s)})
    return {**params, "how": ": " + ", ".join(parts) if parts else ""}


def _not_installed(params: Params) -> Params:
    """Add `reason`: why the build failed."""
    reason = reason_of(params.get("failure") or {})
    return {**params, "reason": f" {message_of(reason)}" if reason is not None else ""}


def _users(params: Params) -> Params:
    """Add `who`: the number of workspaces and templates, with the first five names of each."""
    parts = []
    for name, singular, plural in (
        ("workspaces", "%(count)d workspace", "%(count)d workspaces"),
        ("templates", "%(count)d template", "%(count)d templates"),
    ):
        names = list(params.get(name, ()))
        if names:
            count = ngettext(singular, plural, len(names)) % {"count": len(names)}
            shown = ", ".join(names[:5]) + ("…" if len(names) > 5 else "")
            parts.append(f"{count} ({shown})")
    return {**params, "who": join_names(parts)}


def _conda_packages(params: Params) -> Params:
    """Join `packages`; add `more`: the number of packages that are not named."""
    more = gettext(" and %(count)d more") % {"count": params["more"]} if params.get("more") else ""
    return {**params, "packages": ", ".join(params.get("packages", ())), "more": more}


def _folders(params: Params) -> Params:
    """Add `there`: the folders on nodes."""
    folders = list(params.get("known", ()))
    folders_text = (
        gettext(" Folders on nodes: %(folders)s.") % {"folders": ", ".join(folders[:10])} if folders else ""
    )
    return {**params, "there": folders_text}


def _limit(params: Params) -> Params:
    return {**params, "limit": format_memory(params["limit_mib"])}


_RETRIED = _("The portal retries automatically.")
_EDIT_SOURCE = _("Correct the package list and build again.")

TEXTS: dict[StrEnum, Text] = {
    EnvironmentCode.BAD_PYTHON: Text(_("Choose one of: %(known)s."), prepare=joined_lists("known")),
    EnvironmentCode.BEING_INSTALLED: Text(
        _("“%(environment)s” is being installed in this pool%(how)s."),
        _("The workspace starts automatically when the installation is done."),
        prepare=_installing,
    ),
    EnvironmentCode.BUILD_CANCELLED: Text(
        _("The build was cancelled."), _("Start a new build when you need it.")
    ),
    EnvironmentCode.BUILD_DISK_FULL: Text(
        _("The disk of %(node)s is full."),
        _("Ask an operator to free disk space. The portal retries automatically."),
    ),
    EnvironmentCode.BUILD_FAILED: Text(
        _("A package could not be installed%(where)s%(said)s"), _EDIT_SOURCE, prepare=_source_line
    ),
    EnvironmentCode.BUILD_HASH_MISMATCH: Text(
        _("The package index delivered a file that differs from the lock%(where)s%(said)s"),
        _("Update the lock file, or check the package index."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_PYTHON: Text(
        _("Python %(python)s is not installed on %(node)s%(said)s"),
        _("Choose another Python version, or ask an operator to install this one on the node."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_SUCH_FOLDER: Text(
        _("%(node)s cannot use an environment in this folder%(said)s"),
        _("Add the folder to BERTH_ENVIRONMENT_FOLDERS on the node. The portal retries automatically."),
        prepare=_source_line,
    ),
    EnvironmentCode.BUILD_NO_SUCH_PACKAGE: Text(
        _("The package index has no package %(package)s%(where)s."),
        _("Correct or remove the package in the list, and build again."),
        prepare=_missing_package,
    ),
    EnvironmentCode.BUILD_RESOLUTION_FAILED: Text(
        _("The package requirements conflict%(where)s%(said)s"), _EDIT_SOURCE, prepare=_source_line
    ),
    EnvironmentCode.BUILD_TIMED_OUT: Text(_("The build exceeded its time limit."), _RETRIED),
    EnvironmentCode.BUILD_TOO_LARGE: Text(
        _("The environment exceeds the size limit of %(limit)s."),
        _("Remove packages, or ask an operator to raise BERTH_ENVIRONMENT_MAX_MIB."),
        prepare=_limit,
    ),
    EnvironmentCode.BUILD_UNFORESEEN: Text(
        _("The build failed on %(node)s with an unexpected error%(said)s"), _RETRIED, prepare=_source_line
    ),
    EnvironmentCode.BUILD_UNSOUND: Text(
        _("%(node)s reported a different build from the one requested."),
        _("Ask an operator to check the node. The portal retries automatically."),
    ),
    EnvironmentCode.BUILD_UV_MISSING: Text(
        _("%(node)s cannot build environments: the program uv is missing."),
        _("Ask an operator to install uv on the node. The portal retries automatically."),
    ),
    EnvironmentCode.CONDA_FILE_NOT_READ: Text(
        _("Line %(line)d of the environment.yml is not supported: %(text)s."),
        _("Use only the list “dependencies”, with “pip” in it, and delete the rest."),
    ),
    EnvironmentCode.CONDA_WITHOUT_WHEEL: Text(
        _(
            "These conda packages have no wheel on the package index (line numbers in parentheses): "
            "%(packages)s%(more)s."
        ),
        _("Delete these lines: wheels contain their libraries. Ask an operator for programs on the nodes."),
        prepare=_conda_packages,
    ),
    EnvironmentCode.CURATED_KEPT: Text(
        _("“%(name)s” comes with Berth and cannot be deleted."), _("Disable it instead.")
    ),
    EnvironmentCode.ENVIRONMENT_IN_USE: Text(
        _("“%(name)s” is in use by %(who)s."),
        _("Choose a successor and wait until the environment is unused, or disable it."),
        prepare=_users,
    ),
    EnvironmentCode.FOLDER_NOT_THERE: Text(
        _("No node can use an environment in %(folder)s.%(there)s"),
        _("Add the folder to BERTH_ENVIRONMENT_FOLDERS on the nodes, or choose an available one."),
        prepare=_folders,
    ),
    EnvironmentCode.FOLDER_NOT_VALID: Text(
        _("“%(folder)s” is not a valid folder path."),
        _("Enter an absolute path, for example /opt/conda/envs/ml."),
    ),
    EnvironmentCode.INDEX_UNREACHABLE: Text(
        _("%(node)s cannot reach the package index%(said)s"),
        _("Ask an operator to check its network or set a mirror. The portal retries automatically."),
        prepare=_source_line,
    ),
    EnvironmentCode.INSTALLED_ON_NODES: Text(
        _("“%(name)s” is preinstalled on the nodes and cannot be built."),
        _("Create your own environment."),
    ),
    EnvironmentCode.LACKS_PROGRAM: Text(
        _("“%(environment)s” has no %(program)s, which %(template)s needs."),
        _("Choose another environment, or add the package and build it again."),
    ),
    EnvironmentCode.LINE_FOR_ANOTHER_TOOL: Text(
        _("Line %(line)d is not in the format of pip: %(text)s."), _("Write %(example)s.")
    ),
    EnvironmentCode.LINE_FROM_ADDRESS: Text(
        _("Line %(line)d installs from a URL: %(text)s."),
        _("Write the name and version from the package index, such as %(example)s."),
    ),
    EnvironmentCode.LINE_FROM_FILE: Text(
        _("Line %(line)d installs from a file or folder: %(text)s."),
        _("Write %(example)s. “pip list --format=freeze” prints the whole list in this form."),
    ),
    EnvironmentCode.LINE_HAS_OPTION: Text(
        _("Line %(line)d has a pip option: %(text)s."), _("Delete the option.")
    ),
    EnvironmentCode.LINE_INCLUDES_FILE: Text(
        _("Line %(line)d refers to another file: %(text)s."), _("Paste the lines of that file instead.")
    ),
    EnvironmentCode.LINE_NOT_VALID: Text(
        _("Line %(line)d is not a valid package requirement: %(text)s."),
        _("Enter one package per line, such as numpy>=2.1, without options, addresses or files."),
    ),
    EnvironmentCode.LINE_SETS_INDEX: Text(
        _("Line %(line)d sets a package index: %(text)s."),
        _("Delete the line. Ask an operator to add this index to BERTH_NODE_PACKAGE_INDEX on the nodes."),
    ),
    EnvironmentCode.LOCK_EMPTY: Text(
        _("The lock file contains no packages."), _("Paste the complete lock file.")
    ),
    EnvironmentCode.NAME_TAKEN: Text(_("Slug “%(slug)s” already in use."), _("Choose another name.")),
    EnvironmentCode.NODE_DID_NOT_ANSWER: Text(_("%(node)s did not respond during the build."), _RETRIED),
    EnvironmentCode.NOTHING_ASKED_FOR: Text(_("The package list is empty."), _("Enter at least 1 package.")),
    EnvironmentCode.NOTHING_TO_CANCEL: Text(
        _("The build has already ended."), _("Open the build to see its result.")
    ),
    EnvironmentCode.NOT_INSTALLED: Text(
        _("“%(environment)s” could not be installed.%(reason)s"),
        _("Ask an operator to check %(environment)s on the Environments page."),
        prepare=_not_installed,
    ),
    EnvironmentCode.NOT_READY: Text(
        _("“%(environment)s” %(how)s."),
        _("Choose another environment, or wait until this one is ready."),
        prepare=_progress,
    ),
    EnvironmentCode.NOT_VALID: Text(_("The environment is not valid."), _("Correct the marked fields.")),
    EnvironmentCode.NO_BUILDING_NODE: Text(
        _("No online node can build “%(environment)s”."),
        _("The portal starts the build when a node is online. Operators see the nodes on the Nodes page."),
    ),
    EnvironmentCode.NO_FOLDER_NAMED: Text(
        _("No folder was entered."), _("Choose a folder from the list, or enter its path.")
    ),
    EnvironmentCode.NO_SUCH_BUILD: Text(_("Build not found."), _("Choose a build from the list.")),
    EnvironmentCode.NO_SUCH_ENVIRONMENT: Text(
        _("Environment not found."), _("Choose an environment from the list.")
    ),
    EnvironmentCode.NO_SUCH_VERSION: Text(_("Version not found."), _("Choose a version from the list.")),
    EnvironmentCode.ON_ITS_WAY: Text(
        _("“%(environment)s” %(how)s."),
        _("The workspace starts automatically when a node has the environment."),
        prepare=_progress,
    ),
    EnvironmentCode.PYPROJECT_NOT_READ: Text(
        _("The pyproject.toml has no valid dependencies: %(problem)s."),
        _("Paste a file with a “dependencies” list in “[project]”."),
    ),
    EnvironmentCode.PYTHON_DIFFERS: Text(
        _("The environment.yml needs Python %(wanted)s, but Python %(python)s was chosen."),
        _("Choose another Python version, or delete “python” from the list."),
    ),
    EnvironmentCode.SOURCE_TOO_LONG: Text(_("The source exceeds %(limit)d KiB."), _("Shorten it.")),
    EnvironmentCode.SUCCESSOR_NOT_VALID: Text(
        _("“%(successor)s” cannot be the successor."),
        _("Choose an environment that the same users may use."),
    ),
    EnvironmentCode.SWITCHED_OFF: Text(_("“%(environment)s” is disabled."), _("Choose another environment.")),
    EnvironmentCode.TOO_MANY: Text(
        _("Limit of %(limit)d environments reached."), _("Delete an environment first.")
    ),
    EnvironmentCode.VERSION_NOT_READY: Text(
        _("Version %(number)d is not ready."), _("Build it first, or choose a ready version.")
    ),
}
