"""`client.service_accounts`"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from portal.cli.client.resource import Resource
from portal.cli.client.transport import JsonObject, drop_empty, path_of


class ServiceAccounts(Resource):
    """A team's service accounts, their tokens and trust rules."""

    def list(self, team: str) -> Iterator[JsonObject]:
        return self._transport.list(_path(team))

    def create(self, team: str, **account: str) -> JsonObject:
        """Create a service account: `name`; optional is `description`."""
        return self._transport.post(_path(team), drop_empty(account))

    def deactivate(self, team: str, username: str, *, note: str = "") -> JsonObject:
        return self._transport.post(_path(team, username, "deactivate"), drop_empty({"note": note}))

    def reactivate(self, team: str, username: str) -> JsonObject:
        return self._transport.post(_path(team, username, "reactivate"))

    def tokens(self, team: str, username: str) -> Iterator[JsonObject]:
        """Yield the valid tokens of a service account, without secrets."""
        return self._transport.list(_path(team, username, "tokens"))

    def create_token(self, team: str, username: str, **token: Any) -> JsonObject:
        """Create a token: `name`; optional are `scopes`, `expires_at`. Only this response has its secret."""
        return self._transport.post(_path(team, username, "tokens"), drop_empty(token))

    def trust_rules(self, team: str, username: str) -> Iterator[JsonObject]:
        """Yield the rules that exchange pipelines' tokens for tokens of a service account."""
        return self._transport.list(_path(team, username, "trust-rules"))

    def create_trust_rule(self, team: str, username: str, **rule: Any) -> JsonObject:
        """Create a rule: `name`, `issuer`, `audience`, `conditions`, `scopes`; optional is `lifetime_s`."""
        return self._transport.post(_path(team, username, "trust-rules"), drop_empty(rule))

    def delete_trust_rule(self, team: str, username: str, rule_id: str) -> None:
        self._transport.delete(_path(team, username, "trust-rules", rule_id))


def _path(team: str, *segments: str) -> str:
    return path_of("teams", team, "service-accounts", *segments)
