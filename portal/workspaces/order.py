"""What a new workspace is asked to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.catalog.environments.models import Environment
from portal.catalog.lifetimes import expected_of, lifetime_of
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


@dataclass(frozen=True, slots=True)
class WorkspaceOrder:
    """A new workspace of `template` on `flavor`, charged to `team`.

    - `name` is empty for a name that the portal chooses.
    - `lifetime_s` is after how many seconds the workspace stops, as template, flavor and site allow; None for
      their default.
    - `expected_s` is for how many seconds the workspace is needed, for estimates; None for `lifetime_s`, or
      else what the flavor says.
    - `checkpointed` says whether the work continues after a preemption; None for what template and flavor
      say.
    - `environment` is the software that the workspace runs in; None for its template's.
    - `secrets` are the names of secrets that it gets beside those that all get.
    - `git` is the repository to clone at its start; None for its template's, an empty address for none.
    - With `start_without_gpu`, a workspace that would wait and can start at once without its accelerators
      starts with them released.
    """

    team: Team
    template: Template
    flavor: Flavor
    name: str = ""
    expected_s: int | None = None
    lifetime_s: int | None = None
    priority: int = 0
    checkpointed: bool | None = None
    environment: Environment | None = None
    secrets: Sequence[str] = ()
    git: Source | None = None
    start_without_gpu: bool = False

    @property
    def requested_name(self) -> str:
        """The name as it is stored; empty for one that the portal chooses."""
        return self.name.strip().lower()

    @property
    def duration_s(self) -> int:
        """For how many seconds estimates expect the workspace to run."""
        stated = (seconds for seconds in (self.expected_s, self.lifetime_s) if seconds)
        return expected_of(self.template, self.flavor, min(stated, default=None))

    @property
    def loses_work(self) -> bool:
        """Whether a preemption loses the work."""
        if self.checkpointed is None:
            return self.template.loses_work_on(self.flavor)
        return not self.checkpointed

    def require_in_range(self) -> None:
        """Raises `InvalidInput` for an expected time or a priority out of range."""
        require_in_range(self.expected_s, self.priority)

    def granted_lifetime_s(self) -> int | None:
        """Return for how many seconds the workspace may run, None for no end. Raises `InvalidInput`."""
        return lifetime_of(self.template, self.flavor, self.lifetime_s, expected_s=self.expected_s)

    def digest(self) -> str:
        """Return what identifies the order: an idempotency key is refused with another one."""
        return digest_of(
            self.team.slug,
            self.template.slug,
            self.flavor.slug,
            self.requested_name,
            self.expected_s,
            self.lifetime_s,
            self.priority,
            self.checkpointed,
            self.environment.slug if self.environment is not None else None,
            sorted(self.secrets),
            self.git,
            self.start_without_gpu,
        )


def require_in_range(expected_s: int | None, priority: int = 0) -> None:
    """Raises `InvalidInput` for an expected time or a priority out of range."""
    if expected_s is not None and not MIN_EXPECTED_S <= expected_s <= MAX_EXPECTED_S:
        reason = Reason(WorkspaceCode.EXPECTED_OUT_OF_RANGE)
        raise InvalidInput(reason, errors={"expected_hours": [reason]})
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        reason = Reason(WorkspaceCode.PRIORITY_OUT_OF_RANGE, {"min": -MAX_PRIORITY, "max": MAX_PRIORITY})
        raise InvalidInput(reason, errors={"priority": [reason]})
