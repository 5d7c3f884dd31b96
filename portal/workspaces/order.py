"""An order for a new workspace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from portal.catalog.environments.models import Environment
from portal.catalog.lifetimes import expected_run_time, lifetime_of
from portal.catalog.models import Flavor, Template
from portal.catalog.repositories.rules import Source
from portal.common.errors import InvalidInput
from portal.common.idempotency import digest_of
from portal.common.reasons.reason import Reason
from portal.people.accounts.models import Team
from portal.workspaces.codes import WorkspaceCode

MIN_EXPECTED_S = 60
MAX_EXPECTED_S = 30 * 86_400
MAX_PRIORITY = 100
MAX_FLAVORS = 5
MAX_START_WITHIN_S = 7 * 86_400


@dataclass(frozen=True, slots=True)
class WorkspaceOrder:
    """A new workspace of `template` on `flavor`, charged to `team`.

    - `fallbacks` are further flavors in order of preference. The workspace starts on the first that is free,
      unless an earlier one is expected to be free within `start_within_s`.
    - `name` is empty for a generated name.
    - `lifetime_s` is the time in seconds until the workspace stops, within the limits of template, flavor and
      site; `None` for their default.
    - `expected_s` is the time for which the workspace is needed, for estimates; `None` for `lifetime_s`, or
      else the flavor's default.
    - `checkpointed` says whether the work continues after a preemption; `None` for the default of template
      and flavor.
    - `environment` is the software environment; `None` for the template's.
    - `secrets` are names of secrets in addition to those that all workspaces get.
    - `git` is the repository to clone at start; `None` for the template's, an empty URL for none.
    - With `start_without_gpu`, a workspace that would be queued, but can start at once without its
      accelerators, starts with them released.
    - With `move_home`, the home may move to another machine with a start, regardless of its size.
    - `bound_to` is the id of the job token with which the workspace ends; `None` if it outlives the job.
    """

    team: Team
    template: Template
    flavor: Flavor
    fallbacks: Sequence[Flavor] = ()
    start_within_s: int = 0
    name: str = ""
    expected_s: int | None = None
    lifetime_s: int | None = None
    priority: int = 0
    checkpointed: bool | None = None
    environment: Environment | None = None
    secrets: Sequence[str] = ()
    git: Source | None = None
    start_without_gpu: bool = False
    move_home: bool = False
    bound_to: UUID | None = None

    @property
    def requested_name(self) -> str:
        """The normalised name, or an empty string for a generated one."""
        return self.name.strip().lower()

    @property
    def flavors(self) -> tuple[Flavor, ...]:
        """All listed flavors, in order of preference."""
        return (self.flavor, *self.fallbacks)

    @property
    def duration_s(self) -> int:
        """The expected run time in seconds, for estimates."""
        stated = (seconds for seconds in (self.expected_s, self.lifetime_s) if seconds)
        return expected_run_time(self.template, self.flavor, min(stated, default=None))

    @property
    def loses_work(self) -> bool:
        """Whether a preemption loses work."""
        return self.loses_work_on(self.flavor)

    def loses_work_on(self, flavor: Flavor) -> bool:
        """Return whether a preemption loses work on this flavor."""
        if self.checkpointed is None:
            return self.template.loses_work_on(flavor)
        return not self.checkpointed

    def require_in_range(self) -> None:
        """Raise `InvalidInput` if the expected time, the priority or the list of flavors is out of range."""
        require_in_range(self.expected_s, self.priority)
        require_choices(self.flavors, self.start_within_s)

    def granted_lifetime_s(self, flavor: Flavor | None = None) -> int | None:
        """Return the lifetime in seconds, or `None` for no limit. Raises `InvalidInput`."""
        flavor = flavor or self.flavor
        return lifetime_of(self.template, flavor, self.lifetime_s, expected_s=self.expected_s)

    def digest(self) -> str:
        """Return a digest that detects if an idempotency key is reused with another order."""
        return digest_of(
            self.team.slug,
            self.template.slug,
            [flavor.slug for flavor in self.flavors],
            self.start_within_s,
            self.requested_name,
            self.expected_s,
            self.lifetime_s,
            self.priority,
            self.checkpointed,
            self.environment.slug if self.environment is not None else None,
            sorted(self.secrets),
            self.git,
            self.start_without_gpu,
            self.move_home,
            self.bound_to is not None,
        )


def require_choices(flavors: Sequence[Flavor], start_within_s: int = 0) -> None:
    """Raise `InvalidInput` if the list of flavors is invalid or the wait is out of range."""
    slugs = [flavor.slug for flavor in flavors]
    reason: Reason | None = None
    if duplicate := next((flavor for flavor in flavors if slugs.count(flavor.slug) > 1), None):
        reason = Reason(WorkspaceCode.FLAVOR_TWICE, {"flavor": duplicate.name})
    elif len(slugs) > MAX_FLAVORS:
        reason = Reason(WorkspaceCode.FLAVORS_TOO_MANY, {"max": MAX_FLAVORS})
    elif len({flavor.simulated for flavor in flavors}) > 1:
        reason = Reason(WorkspaceCode.FLAVORS_MIXED)
    if reason is not None:
        raise InvalidInput(reason, errors={"flavors": [reason]})
    if not 0 <= start_within_s <= MAX_START_WITHIN_S:
        reason = Reason(WorkspaceCode.START_WITHIN_OUT_OF_RANGE, {"max": MAX_START_WITHIN_S // 60})
        raise InvalidInput(reason, errors={"start_within_min": [reason]})


def require_in_range(expected_s: int | None, priority: int = 0) -> None:
    """Raise `InvalidInput` if the expected time or the priority is out of range."""
    if expected_s is not None and not MIN_EXPECTED_S <= expected_s <= MAX_EXPECTED_S:
        reason = Reason(WorkspaceCode.EXPECTED_OUT_OF_RANGE)
        raise InvalidInput(reason, errors={"expected_hours": [reason]})
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        reason = Reason(WorkspaceCode.PRIORITY_OUT_OF_RANGE, {"min": -MAX_PRIORITY, "max": MAX_PRIORITY})
        raise InvalidInput(reason, errors={"priority": [reason]})
