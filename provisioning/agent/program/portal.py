"""What the agent says to the portal."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .config import Config

REVOKED = (401, 403, 410)
"""The answers that say that this start is over."""


class Portal:
    """The portal, as the agent of one start may call it."""

    def __init__(self, config: Config) -> None:
        self.token = config["agent_token"]
        self.start = {"workspace_id": config["workspace_id"], "generation": config["generation"]}
        url = config["agent_url"].rstrip("/")
        self.base = url + (":" if url.startswith("unix:") else "") + "/agent/v1/"

    def post(self, name: str, body: Config, timeout_s: float = 10.0) -> tuple[int, Any]:
        """The status and answer of a call to the portal; status 0 when it cannot be reached."""
        # Here: usually the first call is made by a thread, when the app is on its way.
        from .http_json import http_json

        try:
            return http_json("POST", self.base + name, self.token, {**body, **self.start}, timeout_s)
        except OSError:
            return 0, None
