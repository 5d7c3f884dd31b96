"""Deletion policies: templates, flavors and accounts that workspaces use are kept."""

from __future__ import annotations

from portal.catalog.deletion_policy import EntryDeletionPolicy
from portal.catalog.models import Flavor, Template
from portal.common.errors import StateConflict
from portal.common.problem_codes import ProblemCode
from portal.common.reasons.reason import Reason
from portal.people.accounts.deletion_policy import AccountDeletionPolicy
from portal.people.accounts.models import User
from portal.workspaces.codes import WorkspaceCode
from portal.workspaces.models import Workspace

MAX_NAMED = 5
MAX_NAMED_OF_ACCOUNT = 20


class KeepEntriesInUse(EntryDeletionPolicy):
    """Keeps templates and flavors in use, because their workspaces could not start again."""

    def require_deletable(self, entry: Template | Flavor) -> None:
        using = Workspace.objects.live().filter(
            **{"template" if isinstance(entry, Template) else "flavor": entry.pk}
        )
        count = using.count()
        if count:
            shown = using.order_by("-created_at").values_list("name", flat=True)[:MAX_NAMED]
            params = {"name": entry.name, "count": count, "names": list(shown)}
            reason = Reason(WorkspaceCode.ENTRY_IN_USE, params)
            raise StateConflict(reason, code=ProblemCode.IN_USE, count=count)


class KeepAccountsWithWorkspaces(AccountDeletionPolicy):
    """Keeps accounts with workspaces, unless the workspaces are deleted with the account."""

    def require_deletable(self, user: User, *, delete_workspaces: bool) -> None:
        if delete_workspaces:
            return
        names = list(
            Workspace.objects.live().filter(owner=user).order_by("name").values_list("name", flat=True)
        )
        if names:
            params = {"username": user.username, "count": len(names), "names": names[:MAX_NAMED_OF_ACCOUNT]}
            raise StateConflict(
                Reason(WorkspaceCode.USER_HAS_WORKSPACES, params), code=ProblemCode.HAS_WORKSPACES
            )
