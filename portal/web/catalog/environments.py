"""Environments that a template can use, for its form and page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.catalog.environments import selectors
from portal.catalog.environments.models import Environment
from portal.catalog.environments.presenters import environment_state_text
from portal.catalog.models import Template
from portal.common.completion import MAX_OPTIONS, Option
from portal.people.accounts.models import Team, User
from portal.scheduling.software_requirements import driver_for, parse_version


@dataclass(frozen=True, slots=True)
class EnvironmentChoice:
    """An environment that a template can use; `drivers` names pools with too old drivers, if any."""

    environment: Environment
    state_text: str
    drivers: str

    @property
    def label(self) -> str:
        """Name, state, CUDA version, and pools with too old drivers."""
        parts = [self.environment.name, self.state_text]
        if self.environment.current is not None and self.environment.current.cuda:
            parts.append(f"CUDA {self.environment.current.cuda}")
        return " · ".join(part for part in [*parts, self.drivers] if part)


def choices(actor: User, team: Team | None, present: Environment | None = None) -> list[EnvironmentChoice]:
    """Return environments that all users of the team's or site's template can use, and the current one.

    Returns up to one more than fits into a list, to indicate that there are more.
    """
    rows = selectors.usable_by(actor, team).defer("current__packages")
    environments = list(rows[: MAX_OPTIONS + 1])
    if present is not None and all(environment.pk != present.pk for environment in environments):
        environments.append(present)
    states, drivers = selectors.newest_progress(environments), pool_drivers()
    return [
        EnvironmentChoice(
            environment,
            environment_state_text(environment, states.get(environment.pk)),
            pools_with_old_drivers(environment, drivers),
        )
        for environment in environments
    ]


def options_of(environments: Iterable[Environment]) -> list[Option]:
    """Return slugs with name and state."""
    rows = list(environments)
    progress = selectors.newest_progress(rows)
    return [
        (
            environment.slug,
            f"{environment.name} · {environment_state_text(environment, progress.get(environment.pk))}",
        )
        for environment in rows
    ]


def environment_states(templates: Iterable[Template]) -> dict[str, str]:
    """Return the states of templates' environments, by slug."""
    by_key = {
        template.environment.pk: template.environment
        for template in templates
        if template.environment is not None
    }
    progress = selectors.newest_progress(by_key.values()) if by_key else {}
    return {
        environment.slug: environment_state_text(environment, progress.get(environment.pk))
        for environment in by_key.values()
    }


def pool_drivers() -> list[tuple[str, str]]:
    """Return pools with accelerators and the newest CUDA version that their drivers support."""
    newest: dict[str, str] = {}
    nodes = selectors.building_nodes().exclude(cuda_version="").only("cuda_version", "pool__name")
    for node in nodes:
        before = newest.get(node.pool.name, "")
        newest[node.pool.name] = max(
            before, node.cuda_version, key=lambda version: parse_version(version) or (0, 0)
        )
    return sorted(newest.items())


def pools_with_old_drivers(environment: Environment, drivers: Sequence[tuple[str, str]]) -> str:
    """Return which pools' drivers are too old for the environment's CUDA version, or an empty string."""
    required_cuda = (
        parse_version(driver_for(environment.current.cuda)) if environment.current is not None else None
    )
    if required_cuda is None:
        return ""
    old = [
        f"{pool} ({cuda})"
        for pool, cuda in drivers
        if (driver_cuda := parse_version(cuda)) and driver_cuda < required_cuda
    ]
    return _("newer than the drivers of %(pools)s") % {"pools": ", ".join(old)} if old else ""
