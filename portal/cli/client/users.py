"""`client.users`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Users(Resource):
    """Accounts. All methods except `me` are for administrators."""

    def me(self) -> JsonObject:
        """Return the user of the token, with `username` and `teams`."""
        return self._transport.get("/me")

    def list(self, **filters: str) -> Iterator[JsonObject]:
        """Yield accounts that match the filters (`q`, `state`, `role`, `team`)."""
        return self._transport.list("/users", filters)

    def invite(self, **account: Any) -> JsonObject:
        """Create an account from `username`; optional are `email`, `teams`, `roles`.

        The response includes the invitation link.
        """
        return self._transport.post("/users", drop_empty(account))

    def deactivate(self, username: str, *, note: str = "") -> JsonObject:
        body = drop_empty({"note": note})
        return self._transport.post(path_of("users", username, "deactivate"), body)

    def reactivate(self, username: str) -> JsonObject:
        return self._transport.post(path_of("users", username, "reactivate"))

    def delete(self, username: str, *, workspaces: bool = False, homes: bool = False) -> None:
        """Delete an account permanently. `workspaces` and `homes` delete its workspaces and homes as well."""
        selected = {"workspaces": workspaces, "homes": homes}
        params = {name: "delete" for name, is_selected in selected.items() if is_selected}
        self._transport.delete(path_of("users", username), params)
