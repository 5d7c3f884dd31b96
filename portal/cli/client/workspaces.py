"""`client.workspaces`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, path_of, without_empty
from portal.cli.loopback import Connection


class Workspaces(Resource):
    """Workspaces, their events and output, and the way into them."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Workspaces visible to the user that pass the filters (`state`, `team`, `owner`, `name`, …)."""
        return self._transport.list("/workspaces", filters)

    def get(self, workspace_id: str) -> JsonObject:
        return self._transport.get(_path(workspace_id))

    def create(self, *, idempotency_key: str = "", retries: int = 1, **workspace: Any) -> JsonObject:
        """Create one: `template` and `flavor`; optional are `team`, `environment`, `name`, `lifetime_hours`,
        `checkpointed` and others."""
        return self._transport.post_once(
            "/workspaces", without_empty(workspace), idempotency_key=idempotency_key, retries=retries
        )

    def update(self, workspace_id: str, **changes: Any) -> JsonObject:
        """Change its `name`, `expected_hours` or `priority`."""
        return self._transport.patch(_path(workspace_id), changes)

    def delete(self, workspace_id: str) -> None:
        """Delete it. The home of its user stays. Idempotent."""
        self._transport.delete(_path(workspace_id))

    def start(self, workspace_id: str) -> JsonObject:
        return self._transport.post(_path(workspace_id, "start"))

    def stop(self, workspace_id: str) -> JsonObject:
        return self._transport.post(_path(workspace_id, "stop"))

    def extend(self, workspace_id: str, *, hours: float, idempotency_key: str = "") -> JsonObject:
        """Let it run for longer."""
        return self._transport.post_once(
            _path(workspace_id, "extend"), {"hours": hours}, idempotency_key=idempotency_key
        )

    def resize(self, workspace_id: str, *, flavor: str) -> JsonObject:
        """Change its flavor. Its app restarts once there is room for it."""
        return self._transport.post(_path(workspace_id, "resize"), {"flavor": flavor})

    def release_gpu(self, workspace_id: str) -> JsonObject:
        """Release its GPUs. Its app restarts."""
        return self._transport.post(_path(workspace_id, "release-gpu"))

    def attach_gpu(self, workspace_id: str) -> JsonObject:
        """Attach its GPUs again. Its app restarts once they are free."""
        return self._transport.post(_path(workspace_id, "attach-gpu"))

    def efficiency(self, workspace_id: str) -> JsonObject:
        """The shares of its GPU time that were `used` and `measured`, and a `hint` or none."""
        return self._transport.get(_path(workspace_id, "efficiency"))

    def logs(self, workspace_id: str, *, tail: int = 200) -> str:
        """The last `tail` lines of its program's output."""
        return str(self._transport.get(_path(workspace_id, "logs"), {"tail": tail})["text"])

    def stream_logs(self, workspace_id: str, *, after: int = 0, tail: int = 200) -> Iterator[JsonObject]:
        """Its program's output as it comes: first the last `tail` lines, or what follows message `after`.

        `text` continues that of the message before. With `over` nothing follows. Ends when the portal ends
        the stream: call it again with the `id` of the last message.
        """
        return self._transport.stream(
            _path(workspace_id, "logs", "stream"), after=after, params={"tail": tail}
        )

    def events(self, workspace_id: str) -> Iterator[JsonObject]:
        """Its events, oldest first."""
        return self._transport.list(_path(workspace_id, "events"))

    def stream_events(
        self, workspace_id: str, *, after: int = 0, until: float | None = None, keep_alives: bool = False
    ) -> Iterator[JsonObject]:
        """Its events as they happen, from the one after event `after`; with `keep_alives` empty ones between.

        Ends when the portal ends the stream, or some seconds after `until` on the monotonic clock: call it
        again with the id of the last event.
        """
        return self._transport.stream(
            _path(workspace_id, "events", "stream"), after=after, until=until, keep_alives=keep_alives
        )

    def connect(self, workspace: Mapping[str, Any]) -> Connection:
        """Its origin, for HTTP and WebSockets. The token needs the scope `workspaces:connect`."""
        return self._transport.connect(workspace["url"])

    def http_client(self, workspace_id: str) -> httpx.Client:
        """An HTTP client on its origin, signed in. The caller closes it.

        Names below `localhost`, which Python does not resolve, are reached by their Host header.
        """
        return self.connect(self.get(workspace_id)).http


def _path(workspace_id: str, *segments: str) -> str:
    return path_of("workspaces", workspace_id, *segments)
