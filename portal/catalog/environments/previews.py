"""Previews a new version of an environment: its changes, its users, and when it takes effect.

A node resolves each version. Before that, the requirements are compared with the current version: a lock is
complete, a list only has direct requirements.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Count
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from portal.catalog.environments import changes, policies, selectors, services, sources
from portal.catalog.environments.models import (
    BuildState,
    Environment,
    EnvironmentVersion,
    SourceKind,
    source_digest_of,
)
from portal.catalog.environments.services import require_built
from portal.common.actors import SystemActor
from portal.common.formatting import format_duration
from portal.fleet.inventory.contact import in_contact
from portal.people.accounts.models import User

MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class EnvironmentUsage:
    """Number of workspaces, which keep their version, and names of templates that use an environment."""

    workspaces: int
    running: int
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """Changes from the version `against` (0: none yet), as sentences.

    `exact`: the list is complete; otherwise dependencies may change too.
    """

    against: int
    exact: bool
    changes: tuple[str, ...]
    reach: EnvironmentUsage
    when: tuple[str, ...]


def preview(
    *,
    actor: User | SystemActor,
    environment: Environment,
    source_kind: str,
    source: str,
    python: str = "",
) -> Preview:
    """Return the effect of `change_source` with these arguments. Raises the same errors."""
    policies.require_manage(actor, environment.team)
    require_built(environment)
    kind, text = sources.validate_source(source_kind, source, python)
    python = python or sources.required_python(source_kind, source)
    present = environment.current
    if kind == SourceKind.FOLDER:
        return _folder_preview(actor, environment, text)
    python = sources.python_of(python) if python else environment.python
    exact, lines = False, [_("First version.")]
    if present is not None:
        exact, lines = _changes(environment, present, kind, text, python)
    reach = usage_of(environment)
    against = present.number if present is not None else 0
    return Preview(against, exact, tuple(lines), reach, tuple(_when(environment, reach)))


def _folder_preview(actor: User | SystemActor, environment: Environment, path: str) -> Preview:
    """Return the preview of a folder on nodes, with warnings."""
    folder = services.usable_folder(actor, path)
    lines = [
        ngettext(
            "Python %(python)s with %(count)d package, on %(nodes)s. Nothing is built.",
            "Python %(python)s with %(count)d packages, on %(nodes)s. Nothing is built.",
            folder.package_count,
        )
        % {
            "python": folder.python,
            "count": folder.package_count,
            "nodes": ", ".join(folder.nodes[:MAX_NAMED]),
        },
        *folder_warnings(folder),
    ]
    reach = usage_of(environment)
    present = environment.current
    when = [_("New workspaces use it when a node has checked it, and run on nodes that have it.")]
    return Preview(present.number if present is not None else 0, False, tuple(lines), reach, tuple(when))


def folder_warnings(folder: selectors.NodeFolder) -> list[str]:
    """Return warnings about missing notebook programs and differences between nodes."""
    lines = []
    if missing := sorted({"jupyter-lab", "marimo"} - folder.programs):
        text = _("Missing: %(programs)s. Templates that need these cannot run. Install them in the folder.")
        lines.append(text % {"programs": ", ".join(missing)})
    if not folder.alike:
        lines.append(_("The folder differs between nodes. Make it the same on all nodes."))
    return lines


def usage_of(environment: Environment) -> EnvironmentUsage:
    """Return the workspaces and templates that use the environment."""
    rows = (
        EnvironmentVersion.objects.filter(environment=environment, workspaces__isnull=False)
        .exclude(workspaces__state__in=selectors.HIDDEN_STATES)
        .values("workspaces__state")
        .annotate(count=Count("workspaces"))
        .order_by()
    )
    counts = {row["workspaces__state"]: row["count"] for row in rows}
    return EnvironmentUsage(
        sum(counts.values()),
        counts.get("running", 0),
        tuple(selectors.templates_of(environment).values_list("name", flat=True)[:MAX_NAMED]),
    )


def _changes(
    environment: Environment, present: EnvironmentVersion, kind: SourceKind, text: str, python: str
) -> tuple[bool, list[str]]:
    """Return whether the list of changes is complete, and the changes from the current version."""
    versions: dict[str, str] = {
        canonicalize_name(str(package["name"])): str(package["version"]) for package in present.packages
    }
    if kind == SourceKind.LOCK:
        locked: dict[str, str] = {
            canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
            for requirement in sources.requirements_in(kind, text)
            if len(requirement.specifier) == 1
        }
        differences = changes.compare_packages(versions, locked, pythons=(present.python, python))
        return True, differences.parts
    lines = [f"Python {present.python} → {python}"] if present.python != python else []
    build_text = sources.source_to_build(kind, text, notebook=environment.notebook)
    before = sources.source_to_build(present.source_kind, present.source, notebook=environment.notebook)
    if source_digest_of(kind, python, build_text) == source_digest_of(
        present.source_kind, present.python, before
    ):
        return False, [_("No changes to the list. A build uses newer package versions.")]
    requirements = sources.requirements_in(kind, build_text)
    lines += filter(None, (_line(requirement, versions, python) for requirement in requirements))
    now = {canonicalize_name(name) for name in sources.package_names(kind, build_text)}
    removed_names = [
        name
        for name in sources.package_names(present.source_kind, before)
        if canonicalize_name(name) not in now
    ]
    lines += [_("%(name)s no longer requested") % {"name": name} for name in removed_names]
    new_programs = [
        name
        for name in sources.package_names(kind, build_text)
        if name not in {requirement.name for requirement in requirements}
        and canonicalize_name(name) not in versions
    ]
    lines += [_("%(name)s added") % {"name": name} for name in new_programs]
    return False, lines or [_("The current version has all requested packages.")]


def _line(requirement: Requirement, versions: dict[str, str], python: str) -> str:
    """Return the change of one requirement, or an empty string."""
    full = {"python_version": python, "python_full_version": f"{python}.0"}
    if requirement.marker is not None and not requirement.marker.evaluate(full):
        return ""
    version = versions.get(canonicalize_name(requirement.name))
    if version is None:
        return _("%(name)s added") % {"name": requirement.name}
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    params = {"name": requirement.name, "version": version, "wanted": str(requirement.specifier)}
    return _("%(name)s %(version)s → %(wanted)s") % params


def _when(environment: Environment, reach: EnvironmentUsage) -> list[str]:
    """Return when the version takes effect, and for which workspaces."""
    nodes = list(
        selectors.building_nodes().filter(in_contact()).order_by("name").values_list("name", flat=True)
    )
    if not nodes:
        lines = [_("No node can build it now. The build waits for one.")]
    else:
        took = _last_build_s(environment)
        last = _(" The last build took %(time)s.") % {"time": format_duration(took)} if took else ""
        lines = [_("New workspaces use it when the first node has built it.") + last]
        if len(nodes) > 1:
            text = _("Then copied to the other nodes: %(nodes)s.")
            shown = ", ".join(nodes[:MAX_NAMED]) + ("…" if len(nodes) > MAX_NAMED else "")
            lines.append(text % {"nodes": shown})
    if reach.templates:
        text = _("Templates that use it for new workspaces: %(names)s.")
        lines.append(text % {"names": ", ".join(reach.templates)})
    if reach.workspaces:
        text = ngettext(
            "%(count)d workspace keeps its version, %(running)d of them running.",
            "%(count)d workspaces keep their version, %(running)d of them running.",
            reach.workspaces,
        )
        lines.append(text % {"count": reach.workspaces, "running": reach.running})
    return lines


def _last_build_s(environment: Environment) -> float:
    """Return the duration of the environment's last successful build in seconds, or 0."""
    last = selectors.builds_of(environment).filter(state=BuildState.READY).first()
    if last is None or last.started_at is None or last.ended_at is None:
        return 0.0
    took: timedelta = last.ended_at - last.started_at
    return took.total_seconds()
