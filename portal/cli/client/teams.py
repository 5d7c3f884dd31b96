"""`client.teams`"""

from __future__ import annotations

from collections.abc import Iterator

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class Teams(Resource):
    """Teams. Owners change, archive and restore theirs; operators also create and delete teams."""

    def list(self) -> Iterator[JsonObject]:
        """Yield the teams that you can see."""
        return self._transport.list("/teams")

    def get(self, slug: str) -> JsonObject:
        return self._transport.get(path_of("teams", slug))

    def members(self, slug: str) -> Iterator[JsonObject]:
        return self._transport.list(path_of("teams", slug, "members"))

    def contents(self, slug: str) -> JsonObject:
        """Return the counts of what the deletion of the team would delete."""
        return self._transport.get(path_of("teams", slug, "contents"))

    def create(self, slug: str, *, name: str = "", owner: str = "") -> JsonObject:
        body = {"slug": slug, **drop_empty({"name": name, "owner": owner})}
        return self._transport.post_once("/teams", body)

    def rename(self, slug: str, name: str) -> JsonObject:
        return self._transport.patch(path_of("teams", slug), {"name": name})

    def set_member_shares(self, slug: str, *, on: bool) -> JsonObject:
        """Set whether members take turns in the queue."""
        return self._transport.patch(path_of("teams", slug), {"member_shares": on})

    def archive(self, slug: str) -> JsonObject:
        return self._transport.post(path_of("teams", slug, "archive"))

    def restore(self, slug: str) -> JsonObject:
        return self._transport.post(path_of("teams", slug, "restore"))

    def delete(self, slug: str, *, homes: bool = False) -> None:
        """Start the deletion of an archived team. With `homes`, also delete its home folders."""
        self._transport.delete(path_of("teams", slug), {"homes": "delete"} if homes else None)
