"""Requests from the agent to the portal."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config

REVOKED = (401, 403, 410)
"""Status codes that mean that this start is over."""


class Portal:
    """The portal's API for the agent of one start."""

    def __init__(self, config: Config) -> None:
        self.token = config["agent_token"]
        self.start = {"workspace_id": config["workspace_id"], "generation": config["generation"]}
        url = config["agent_url"].rstrip("/")
        self.base = url + (":" if url.startswith("unix:") else "") + "/agent/v1/"

    def post(self, endpoint: str, body: Config, timeout_s: float = 10.0) -> tuple[int, Any]:
        """Return the status and answer of a request; status 0 if the portal cannot be reached."""
        # Imported here: the first call is usually made by a thread while the app starts.
        from .http_json import http_json

        try:
            return http_json("POST", self.base + endpoint, self.token, {**body, **self.start}, timeout_s)
        except OSError:
            return 0, None
