"""What pages show of environments, versions, builds and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import User
from portal.common.reasons.wording import message_of, next_action_of, reason_of
from portal.environments import changes, policies, selectors, sources
from portal.environments.models import (
    BuildState,
    Environment,
    EnvironmentBuild,
    EnvironmentVersion,
    Kind,
    VersionState,
)

LOG_LINES = 2000
VERSION_LOOKS = {
    VersionState.NEW: ("circle-dashed", ""),
    VersionState.BUILDING: ("loader-2", "busy"),
    VersionState.READY: ("circle-check", "ok"),
    VersionState.FAILED: ("alert-circle", "bad"),
}
BUILD_LOOKS = {
    BuildState.QUEUED: ("hourglass", "wait"),
    BuildState.BUILDING: ("loader-2", "busy"),
    BuildState.READY: ("circle-check", "ok"),
    BuildState.FAILED: ("alert-circle", "bad"),
    BuildState.CANCELLED: ("circle-off", ""),
}


@dataclass(frozen=True, slots=True)
class Row:
    """An environment in a list: how it stands in a word, and what it holds in a few."""

    environment: Environment
    word: str | Promise
    icon: str
    tone: str

    @property
    def size_mib(self) -> int | None:
        return self.environment.current.size_mib if self.environment.current is not None else None


def rows_of(found: Sequence[Environment], states: dict[Any, str]) -> list[Row]:
    """`states` are those of the newest versions by environment."""
    return [_row(each, states.get(each.pk, "")) for each in found]


def _row(environment: Environment, newest: str) -> Row:
    if not environment.enabled:
        return Row(environment, _("Off"), "circle-off", "")
    if environment.kind == Kind.NODE:
        return Row(environment, _("On every node"), "circle-check", "ok")
    if environment.deprecated:
        return Row(environment, _("Deprecated"), "alert-triangle", "wait")
    if environment.current is not None and newest in ("", VersionState.READY, VersionState.NEW):
        return Row(environment, _("Ready"), "circle-check", "ok")
    state = VersionState(newest) if newest else VersionState.NEW
    icon, tone = VERSION_LOOKS[state]
    if environment.current is not None:
        if state == VersionState.BUILDING:
            return Row(environment, _("Ready, next one is built"), icon, tone)
        return Row(environment, _("Ready, next one failed"), icon, "wait")
    return Row(environment, state.label, icon, tone)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, and in words what is different from the one before."""

    version: EnvironmentVersion
    current: bool
    icon: str
    tone: str
    changes: str
    message: str
    next_action: str


def version_rows(environment: Environment, versions: Sequence[EnvironmentVersion]) -> list[VersionRow]:
    """Newest first. A version is compared with the last one before it that was ready."""
    rows = []
    ready = [each for each in versions if each.state == VersionState.READY]
    for each in versions:
        icon, tone = VERSION_LOOKS[VersionState(each.state)]
        before = next((old for old in ready if old.number < each.number), None)
        said = ""
        if each.state == VersionState.READY and before is not None:
            said = changes.between(before, each).sentence
        reason = reason_of(each.failure) if each.state == VersionState.FAILED else None
        rows.append(
            VersionRow(
                each,
                each.pk == environment.current_id,
                icon,
                tone,
                said,
                message_of(reason) if reason else "",
                next_action_of(reason) if reason else "",
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class BuildRow:
    """A build: its state and stage in words, how far it is, why it failed."""

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
        """“Downloading, 12 of 40”."""
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
class LogLine:
    text: str
    wrong: bool = False


def log_lines(build: EnvironmentBuild) -> list[LogLine]:
    """The end of the log, with the line that went wrong marked where it is known."""
    lines = build.log.split("\n")[-LOG_LINES:]
    if lines and not lines[-1]:
        lines.pop()
    wanted = " ".join(str(build.failure.get("params", {}).get("log_line", "")).split())
    marked = -1
    if wanted:
        alike = [number for number, line in enumerate(lines) if wanted in " ".join(line.split())]
        marked = alike[-1] if alike else -1
    return [LogLine(line, number == marked) for number, line in enumerate(lines)]


def detail(actor: User, environment: Environment) -> dict[str, Any]:
    """What the page of one environment shows."""
    versions = list(selectors.versions_of(environment)[:30])
    current = environment.current
    builds = [build_row(each) for each in selectors.builds_of(environment)[:20]]
    newest = versions[0] if versions else None
    return {
        "environment": environment,
        "row": _row(environment, newest.state if newest is not None else ""),
        "manages": policies.may_manage(actor, environment.team),
        "versions": version_rows(environment, versions),
        "newest": newest,
        "holdings": selectors.holdings(current.digest) if current is not None else [],
        "builds": builds,
        "open": [each for each in builds if each.build.open],
        "packages": current_packages(environment),
        "asked_for": asked_for(environment),
    }


def current_packages(environment: Environment) -> list[dict[str, Any]]:
    """All packages of the current version, the heaviest first."""
    version = environment.current
    if version is None:
        return []
    return sorted(version.packages, key=lambda each: (-int(each["size_kib"]), each["name"]))


def asked_for(environment: Environment) -> list[str]:
    """The names that the newest version asks for."""
    newest = selectors.newest_version(environment)
    return sources.names_in(newest.source_kind, newest.source) if newest is not None else []


def deleting_question(environment: Environment) -> dict[str, Any]:
    """What the page asks before an environment goes."""
    return {
        "title": _("Delete the environment “%(name)s”?") % {"name": environment.name},
        "loses": [_("its versions and locks"), _("the logs of its builds")],
        "stays": [_("what nodes hold of it, for some days"), _("the record of what happened")],
        "yes": _("Delete the environment"),
    }


@dataclass(frozen=True, slots=True)
class Preparation:
    """A curated environment on its way: a line on the home page. Why it fails is for operators alone."""

    environment: Environment
    percent: int | None
    message: str = ""
    next_action: str = ""


def preparation(actor: User) -> Preparation | None:
    """“Data science” while it is not there yet: what everybody sees of it, or None."""
    found = (
        Environment.objects.filter(curated=True, enabled=True, kind=Kind.BUILT, current=None)
        .filter(versions__state__in=[VersionState.BUILDING, VersionState.FAILED])
        .order_by("position")
        .first()
    )
    if found is None:
        return None
    version = selectors.newest_version(found)
    progress = selectors.progress_of(found, version)
    if progress.state == VersionState.BUILDING:
        return Preparation(found, progress.percent or 0)
    reason = reason_of(version.failure) if version is not None else None
    if reason is None or not actor.operates:
        return None
    return Preparation(found, None, message_of(reason), next_action_of(reason))
