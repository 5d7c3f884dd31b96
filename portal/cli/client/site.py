"""`client.site`"""

from __future__ import annotations

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject


class Site(Resource):
    """The configuration of the site as a file."""

    def get(self) -> JsonObject:
        """Return `site`, and its text as `yaml`."""
        return self._transport.get("/site")

    def plan(self, text: str, *, prune: bool) -> JsonObject:
        """Return whether the site already matches a site file (`same`), and the `steps` to apply it."""
        return self._transport.post("/site/plan", {"yaml": text, "prune": prune})

    def apply(self, text: str, *, prune: bool) -> JsonObject:
        """Apply a site file. Returns `same`, and the `steps`."""
        return self._transport.post("/site/apply", {"yaml": text, "prune": prune})
