"""Derived secrets of a workspace, which are never stored and differ for each generation."""

from __future__ import annotations

import hashlib
import hmac
from uuid import UUID

from django.conf import settings


def app_token(workspace_id: UUID, generation: int) -> str:
    """Return the secret that the app requires. The gateway adds it; browsers never see it."""
    return _derive("app", workspace_id, generation)


def agent_token(workspace_id: UUID, generation: int) -> str:
    """Return the token with which the agent of one start authenticates."""
    return f"{workspace_id}.{generation}.{_derive('agent', workspace_id, generation)}"


def check_agent_token(token: str) -> tuple[UUID, int] | None:
    """Return workspace id and generation of a valid agent token, else `None`."""
    try:
        workspace, generation, _ = token.split(".")
        identity = UUID(workspace), int(generation)
    except ValueError:
        return None
    genuine = agent_token(*identity)
    return identity if hmac.compare_digest(token.encode(), genuine.encode()) else None


def _derive(purpose: str, workspace_id: UUID, generation: int) -> str:
    text = f"berth:{purpose}:{workspace_id}:{generation}"
    return hmac.new(settings.SECRET_KEY.encode(), text.encode(), hashlib.sha256).hexdigest()
