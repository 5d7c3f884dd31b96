"""REST parameters that choose whether to delete a deleted account's workspaces and homes."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from portal.common.errors import InvalidInput
from portal.common.reasons.reason import Reason
from portal.people.accounts.codes import AccountCode

WORKSPACES = OpenApiParameter(
    "workspaces",
    str,
    enum=["delete"],
    description=(
        "`delete` also deletes the workspaces. Without it, the request is denied while there are any."
    ),
)
HOMES = OpenApiParameter(
    "homes",
    str,
    enum=["delete"],
    description="`delete` also deletes the home folders on all nodes, permanently. By default they stay.",
)
_UNKNOWN = {"workspaces": AccountCode.WORKSPACES_CHOICE, "homes": AccountCode.HOMES_CHOICE}


def is_deletion_chosen(request: Request, name: str = "workspaces") -> bool:
    """Return whether the parameter `name` is `delete`. Raises `InvalidInput` for any other value."""
    choice = request.query_params.get(name)
    if choice not in {None, "delete"}:
        reason = Reason(_UNKNOWN[name])
        raise InvalidInput(reason, errors={name: [reason]})
    return choice == "delete"
