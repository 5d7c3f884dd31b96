"""`client.workspaces`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of
from portal.cli.loopback import Connection

PATHS = {"cancel_move": ("move", "cancel")}
"""Paths of acts on many workspaces, if they differ from the act's name."""


class Workspaces(Resource):
    """Workspaces, their events and output, and connections to their origins."""

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield workspaces visible to the user that match the filters (`state`, `team`, `owner`, `name`,
        …)."""
        return self._transport.list("/workspaces", filters)

    def get(self, workspace_id: str) -> JsonObject:
        return self._transport.get(_path(workspace_id))

    def create(self, *, idempotency_key: str = "", retries: int = 1, **workspace: Any) -> JsonObject:
        """Create a workspace from `template` and `flavor`; optional are `team`, `environment`, `name`,
        `lifetime_hours`, `checkpointed` and others."""
        return self._transport.post_once(
            "/workspaces", drop_empty(workspace), idempotency_key=idempotency_key, retries=retries
        )

    def update(self, workspace_id: str, **changes: Any) -> JsonObject:
        """Change the `name`, `expected_hours` or `priority` of a workspace."""
        return self._transport.patch(_path(workspace_id), changes)

    def delete(self, workspace_id: str) -> None:
        """Delete a workspace. Its user's home is kept. Idempotent."""
        self._transport.delete(_path(workspace_id))

    def start(self, workspace_id: str) -> JsonObject:
        return self._transport.post(_path(workspace_id, "start"))

    def stop(self, workspace_id: str) -> JsonObject:
        return self._transport.post(_path(workspace_id, "stop"))

    def extend(self, workspace_id: str, *, hours: float, idempotency_key: str = "") -> JsonObject:
        """Extend the lifetime of a workspace by `hours`."""
        return self._transport.post_once(
            _path(workspace_id, "extend"), {"hours": hours}, idempotency_key=idempotency_key
        )

    def resize(self, workspace_id: str, *, flavor: str) -> JsonObject:
        """Change the flavor of a workspace. Its app restarts once the resources are free."""
        return self._transport.post(_path(workspace_id, "resize"), {"flavor": flavor})

    def preview_act(self, workspaces: Sequence[str], *, act: str, **terms: Any) -> JsonObject:
        """Return the effect of an act on each workspace, as `results`.

        Acts are `stop`, `extend`, `message`, `move` and `cancel_move`. `terms` are the `hours` of an
        extension and the `node` of a move.
        """
        body = {"workspaces": list(workspaces), "act": act, **drop_empty(terms)}
        return self._transport.post("/workspaces/preview", body)

    def act_on_many(
        self, workspaces: Sequence[str], *, act: str, idempotency_key: str = "", **terms: Any
    ) -> JsonObject:
        """Perform an act on each workspace and return `results`, in this order.

        `terms` are the `hours` of an extension, the `text` of a message, `node` and `reason` of a move.
        """
        body = {"workspaces": list(workspaces), **drop_empty(terms)}
        path = path_of("workspaces", *PATHS.get(act, (act,)))
        return self._transport.post_once(path, body, idempotency_key=idempotency_key)

    def cancel_move(self, workspace_id: str) -> JsonObject:
        """Cancel a workspace's move that has not begun. Idempotent."""
        return self._transport.post(_path(workspace_id, "move", "cancel"))

    def release_gpu(self, workspace_id: str) -> JsonObject:
        """Release the GPUs of a workspace. Its app restarts."""
        return self._transport.post(_path(workspace_id, "release-gpu"))

    def attach_gpu(self, workspace_id: str) -> JsonObject:
        """Attach the GPUs of a workspace again. Its app restarts once they are free."""
        return self._transport.post(_path(workspace_id, "attach-gpu"))

    def efficiency(self, workspace_id: str) -> JsonObject:
        """Return the `used` and `measured` shares of a workspace's GPU time, and an optional `hint`."""
        return self._transport.get(_path(workspace_id, "efficiency"))

    def usage(self, workspace_id: str, *, span: str = "day") -> JsonObject:
        """Return a workspace's CPU, memory and GPU usage: `points`, one per `step_s` seconds, and `limits`.

        `span` is `hour`, `day`, `week` or `all`.
        """
        return self._transport.get(_path(workspace_id, "usage"), {"span": span})

    def logs(self, workspace_id: str, *, tail: int = 200) -> str:
        """Return the last `tail` lines of the app's output."""
        return str(self._transport.get(_path(workspace_id, "logs"), {"tail": tail})["text"])

    def stream_logs(self, workspace_id: str, *, after: int = 0, tail: int = 200) -> Iterator[JsonObject]:
        """Yield the app's output as it arrives: first the last `tail` lines, or all after message `after`.

        The `text` of a message continues that of the previous one. A message with `over` is the last one.
        Ends when the portal ends the stream: call it again with the `id` of the last message.
        """
        return self._transport.stream(
            _path(workspace_id, "logs", "stream"), after=after, params={"tail": tail}
        )

    def events(self, workspace_id: str) -> Iterator[JsonObject]:
        """Yield the workspace's events, oldest first."""
        return self._transport.list(_path(workspace_id, "events"))

    def stream_events(
        self, workspace_id: str, *, after: int = 0, until: float | None = None, keep_alives: bool = False
    ) -> Iterator[JsonObject]:
        """Yield the workspace's events after event `after`; with `keep_alives`, also yield empty ones.

        Ends when the portal ends the stream, or some seconds after `until` (monotonic clock). To continue,
        call this again with the last event's id.
        """
        return self._transport.stream(
            _path(workspace_id, "events", "stream"), after=after, until=until, keep_alives=keep_alives
        )

    def connect(self, workspace: Mapping[str, Any]) -> Connection:
        """Connect to a workspace's origin by HTTP and WebSockets. Requires the scope `workspaces:connect`."""
        return self._transport.connect(workspace["url"])

    def http_client(self, workspace_id: str) -> httpx.Client:
        """Return an authenticated HTTP client for a workspace's origin. The caller closes it.

        Names below `localhost`, which Python does not resolve, are sent as Host header.
        """
        return self.connect(self.get(workspace_id)).http


def _path(workspace_id: str, *segments: str) -> str:
    return path_of("workspaces", workspace_id, *segments)
