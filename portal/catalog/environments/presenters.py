"""Presents environments, versions, builds and logs for pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.catalog.environments import changes, policies, selectors, sources
from portal.catalog.environments.models import (
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    SourceKind,
    VersionState,
)
from portal.catalog.environments.results import LIST_AT_FAULT, WITH_SEPARATE_LOG_LINE
from portal.catalog.environments.wording import progress_text
from portal.common.reasons.wording import message_of, next_action_of, reason_of, sentence_of
from portal.fleet.inventory.contact import contact_of_node
from portal.people.accounts.models import User
from provisioning.environments.folders import fingerprint_of

LOG_LINES = 2000
VERSION_LOOKS: dict[str, tuple[str, str]] = {
    VersionState.NEW: ("circle-dashed", ""),
    VersionState.BUILDING: ("loader-2", "busy"),
    VersionState.READY: ("circle-check", "ok"),
    VersionState.FAILED: ("alert-circle", "bad"),
    BuildState.QUEUED: ("hourglass", "wait"),
}
"""Icon and tone by state, as `selectors.display_state` returns it."""
VERSION_WORDS: dict[str, str | Promise] = {
    **dict(VersionState.choices),
    BuildState.QUEUED: BuildState.QUEUED.label,
}
BUILD_LOOKS = {
    BuildState.QUEUED: ("hourglass", "wait"),
    BuildState.BUILDING: ("loader-2", "busy"),
    BuildState.READY: ("circle-check", "ok"),
    BuildState.FAILED: ("alert-circle", "bad"),
    BuildState.CANCELLED: ("circle-off", ""),
}


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """An environment in a list, with its state as text."""

    environment: Environment
    word: str | Promise
    icon: str
    tone: str

    @property
    def size_mib(self) -> int | None:
        return self.environment.current.size_mib if self.environment.current is not None else None


def rows_of(environments: Sequence[Environment], states: dict[Any, str]) -> list[EnvironmentRow]:
    """Return the rows. `states` are those of the newest versions by environment."""
    return [_row(environment, states.get(environment.pk, "")) for environment in environments]


def _row(environment: Environment, newest: str) -> EnvironmentRow:
    if not environment.enabled:
        return EnvironmentRow(environment, _("Disabled"), "circle-off", "")
    if environment.kind == Kind.NODE:
        return EnvironmentRow(environment, _("On every node"), "circle-check", "ok")
    if environment.deprecated:
        return EnvironmentRow(environment, _("Deprecated"), "alert-triangle", "wait")
    if environment.current is not None and newest in ("", VersionState.READY, VersionState.NEW):
        return EnvironmentRow(environment, _("Ready"), "circle-check", "ok")
    state = newest or VersionState.NEW.value
    icon, tone = VERSION_LOOKS[state]
    if environment.current is not None:
        if state in (VersionState.BUILDING, BuildState.QUEUED):
            return EnvironmentRow(environment, _("Ready, next version building"), icon, tone)
        return EnvironmentRow(environment, _("Ready, next version failed"), icon, "wait")
    return EnvironmentRow(environment, VERSION_WORDS[state], icon, tone)


def environment_state_text(environment: Environment, progress: selectors.Progress | None) -> str:
    """Return the state of a template's environment: “ready”, “is being built: 40 %”."""
    if not environment.enabled:
        return gettext("disabled")
    if environment.kind == Kind.NODE:
        return gettext("on every node")
    if environment.current_id is not None:
        return gettext("deprecated") if environment.deprecated else gettext("ready")
    if progress is None:
        return progress_text("", None)
    return progress_text(progress.state, progress.percent)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, with its changes from the previous one as text."""

    version: EnvironmentVersion
    current: bool
    word: str | Promise
    icon: str
    tone: str
    changes: str
    message: str
    next_action: str


def version_rows(
    environment: Environment, versions: Sequence[EnvironmentVersion], running: Collection[UUID]
) -> list[VersionRow]:
    """Return rows newest first. Each version is compared with the previous ready one.

    `running` are the ids of versions that a node is building.
    """
    rows = []
    ready = [other for other in versions if other.state == VersionState.READY]
    for version in versions:
        state = selectors.display_state(version.state, running=version.pk in running)
        icon, tone = VERSION_LOOKS[state]
        before = next((old for old in ready if old.number < version.number), None)
        sentence = ""
        if version.state == VersionState.READY and before is not None:
            sentence = changes.compare_versions(before, version).sentence
        reason = reason_of(version.failure) if version.state == VersionState.FAILED else None
        rows.append(
            VersionRow(
                version,
                version.pk == environment.current_id,
                VERSION_WORDS[state],
                icon,
                tone,
                sentence,
                message_of(reason) if reason else "",
                next_action_of(reason) if reason else "",
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build: state, progress and failure as text."""

    build: EnvironmentBuild
    icon: str
    tone: str
    percent: int
    message: str
    next_action: str

    @property
    def word(self) -> str:
        return self.build.get_state_display()

    @property
    def stage(self) -> str:
        """The stage and progress: “Downloading, 12 / 40”."""
        if not self.build.open or not self.build.stage:
            return ""
        stage = self.build.get_stage_display()
        return f"{stage}, {self.build.done} / {self.build.total}" if self.build.total else stage


def build_row(build: EnvironmentBuild) -> BuildRow:
    icon, tone = BUILD_LOOKS[BuildState(build.state)]
    reason = reason_of(build.failure)
    return BuildRow(
        build,
        icon,
        tone,
        selectors.percent_of(build),
        message_of(reason) if reason else "",
        next_action_of(reason) if reason else "",
    )


@dataclass(frozen=True, slots=True)
class FailedBuildHelp:
    """A failed version: the reason, and the line of the list if known (else 0).

    `by_list`: only a changed list can help. Otherwise the portal retries at `retry_at`; None: no retry.
    """

    message: str
    next_action: str
    number: int
    line: str
    by_list: bool
    retry_at: datetime | None = None
    build_id: UUID | None = None
    log_line: str = ""
    """The log line that shows the cause, unless the message includes it."""


def failed_build_help(
    version: EnvironmentVersion | None, build_id: UUID | None = None
) -> FailedBuildHelp | None:
    """Return why a version's build failed, and what helps; None if the version has not failed."""
    reason = reason_of(version.failure) if version is not None else None
    if version is None or reason is None or version.state != VersionState.FAILED:
        return None
    number = int(reason.params.get("source_line") or 0)
    lines = version.source.splitlines()
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    by_list = reason.code in LIST_AT_FAULT
    return FailedBuildHelp(
        message_of(reason),
        next_action_of(reason),
        number,
        line[:200],
        by_list,
        version.retry_at,
        build_id,
        str(reason.params.get("log_line") or "") if reason.code in WITH_SEPARATE_LOG_LINE else "",
    )


def failure_sentence(version: EnvironmentVersion) -> str:
    """Return why a version failed, and what helps; empty if the version has not failed."""
    reason = reason_of(version.failure)
    return sentence_of(reason) if reason is not None else ""


@dataclass(frozen=True, slots=True)
class LogLine:
    text: str
    wrong: bool = False


def log_lines(build: EnvironmentBuild) -> list[LogLine]:
    """Return the end of the log, with the failed line marked if known."""
    lines = build.log.split("\n")[-LOG_LINES:]
    if lines and not lines[-1]:
        lines.pop()
    log_line = " ".join(str(build.failure.get("params", {}).get("log_line", "")).split())
    marked = -1
    if log_line:
        matches = [number for number, line in enumerate(lines) if log_line in " ".join(line.split())]
        marked = matches[-1] if matches else -1
    return [LogLine(line, number == marked) for number, line in enumerate(lines)]


def detail(actor: User, environment: Environment) -> dict[str, Any]:
    """Return the context of an environment's page."""
    versions = list(selectors.versions_of(environment)[:30])
    current = environment.current
    builds = [build_row(built) for built in selectors.builds_of(environment)[:20]]
    newest = versions[0] if versions else None
    running = {build.build.version_id for build in builds if build.build.state == BuildState.BUILDING}
    newest_state = (
        selectors.display_state(newest.state, running=newest.pk in running) if newest is not None else ""
    )
    return {
        "environment": environment,
        "row": _row(environment, newest_state),
        "manages": policies.may_manage(actor, environment.team),
        "versions": version_rows(environment, versions, running),
        "newest": newest,
        "holdings": holding_rows(current),
        "folder": newest.source if newest is not None and is_folder(newest) else "",
        "lacks": _missing_programs(current),
        "builds": builds,
        "open": [build for build in builds if build.build.open],
        "packages": current_packages(environment),
        "asked_for": source_requirements(environment),
        "mending": failed_build_help(
            selectors.newest_version(environment),
            next((build.build.pk for build in builds if _builds_version(build, newest)), None),
        ),
    }


def _missing_programs(version: EnvironmentVersion | None) -> list[str]:
    """Return the notebook programs that are missing in a folder."""
    if version is None or not is_folder(version):
        return []
    return sorted(sources.NOTEBOOK_PROGRAMS - set(version.programs))


def is_folder(version: EnvironmentVersion | None) -> bool:
    """Return whether a version is an existing folder on nodes."""
    return version is not None and version.source_kind == SourceKind.FOLDER


def folder_choices(present: EnvironmentVersion | None = None) -> list[tuple[str, str]]:
    """Return the folders on nodes as choices, with content, nodes and missing programs in the label."""
    choices = [(folder.path, _folder_line(folder)) for folder in selectors.existing_folders()]
    if present is not None and is_folder(present) and all(path != present.source for path, _line in choices):
        choices.append(
            (present.source, gettext("%(folder)s · not on any node now") % {"folder": present.source})
        )
    return choices


def _folder_line(folder: selectors.NodeFolder) -> str:
    parts = [folder.path, f"Python {folder.python}"]
    parts.append(gettext("%(count)d packages") % {"count": folder.package_count})
    parts.append(", ".join(folder.nodes[:3]) + ("…" if len(folder.nodes) > 3 else ""))
    if "jupyter-lab" not in folder.programs:
        parts.append(gettext("no JupyterLab"))
    if not folder.alike:
        parts.append(gettext("differs between nodes"))
    return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class EnvironmentNodeRow:
    """A node, with its state for the current version as text. `age` is the time since the last contact."""

    holding: selectors.NodeHolding
    word: str
    icon: str
    tone: str
    note: str
    age: str


def holding_rows(version: EnvironmentVersion | None) -> list[EnvironmentNodeRow]:
    """Return a row for each node that could have the version; for a folder also its content there."""
    if version is None or not version.digest:
        return []
    rows = []
    fingerprint = fingerprint_of(
        version.python, ((package["name"], package["version"]) for package in version.packages)
    )
    for holding in selectors.holdings(version.digest):
        note = ""
        if holding.holds and is_folder(version):
            note = gettext("Python %(python)s, %(count)d packages") % {
                "python": holding.python,
                "count": holding.package_count,
            }
            if holding.fingerprint != fingerprint:
                note += " · " + gettext("changed since the last check")
        if holding.holds:
            look = (gettext("Available"), "circle-check", "ok")
        elif is_folder(version):
            look = (gettext("Missing"), "circle-off", "")
        else:
            look = (gettext("Copying"), "hourglass", "wait")
        age = contact_of_node(holding.node).age_text(timezone.now())
        rows.append(EnvironmentNodeRow(holding, *look, note, age))
    return rows


def _builds_version(row: BuildRow, version: EnvironmentVersion | None) -> bool:
    return version is not None and row.build.version_id == version.pk


def current_packages(environment: Environment) -> list[dict[str, Any]]:
    """Return all packages of the current version, largest first."""
    version = environment.current
    if version is None:
        return []
    return sorted(version.packages, key=lambda package: (-int(package["size_kib"]), package["name"]))


def source_requirements(environment: Environment) -> list[str]:
    """Return the requirements in the newest version's source, as written."""
    newest = selectors.newest_version(environment)
    return sources.lines_in(newest.source_kind, newest.source) if newest is not None else []


def deleting_question(environment: Environment) -> dict[str, Any]:
    """Return the context of the confirmation to delete an environment."""
    return {
        "title": _("Delete the environment “%(name)s”?") % {"name": environment.name},
        "loses": [_("its versions and locks"), _("the logs of its builds")],
        "stays": [_("copies on nodes, for a few days"), _("audit log entries")],
        "yes": _("Delete environment"),
    }


@dataclass(frozen=True, slots=True)
class Preparation:
    """A curated environment in preparation, for the home page. Only operators see why a build fails."""

    environment: Environment
    percent: int | None
    message: str = ""
    next_action: str = ""


def preparation(actor: User) -> Preparation | None:
    """Return the curated environment in preparation, as shown to all users, or None."""
    pending = (
        Environment.objects.filter(curated=True, enabled=True, kind=Kind.BUILT, current=None)
        .filter(versions__state__in=[VersionState.BUILDING, VersionState.FAILED])
        .order_by("position")
        .first()
    )
    if pending is None:
        return None
    version = selectors.newest_version(pending)
    progress = selectors.progress_of(pending, version)
    if progress.state == VersionState.BUILDING:
        return Preparation(pending, progress.percent or 0)
    reason = reason_of(version.failure) if version is not None else None
    if reason is None or not actor.operates:
        return None
    return Preparation(pending, None, message_of(reason), next_action_of(reason))
