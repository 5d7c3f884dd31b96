"""What becomes of the workspaces of an account that is deleted: a parameter of REST."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from portal.common.errors import InvalidInput
from portal.common.reasons.codes import AccountCode
from portal.common.reasons.reason import Reason

PARAMETER = OpenApiParameter("workspaces", str, enum=["delete"], description="Delete them too.")


def asked_in(request: Request) -> bool:
    """Whether they shall be deleted too. Raises `InvalidInput` for anything but `delete` and nothing."""
    choice = request.query_params.get("workspaces", "")
    if choice not in {"", "delete"}:
        reason = Reason(AccountCode.WORKSPACES_CHOICE)
        raise InvalidInput(reason, errors={"workspaces": [reason]})
    return choice == "delete"
