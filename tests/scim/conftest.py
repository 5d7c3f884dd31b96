"""An identity provider that calls the portal over SCIM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from tests.factories import make_token

if TYPE_CHECKING:
    from django.http import HttpResponse

    from portal.people.accounts.models import User

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"


class Idp:
    """Sends requests below /scim/v2/ with a token; bodies and responses are dictionaries."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> HttpResponse:
        more.setdefault("content_type", "application/scim+json")
        data = body if isinstance(body, str | bytes) else json.dumps(body) if body is not None else ""
        headers = {"HTTP_AUTHORIZATION": f"Bearer {self.secret}", **more}
        answer: HttpResponse = Client().generic(method, f"/scim/v2/{path}", data, **headers)
        return answer

    def get(self, path: str, status: int = 200, **more: Any) -> Any:
        return self._checked(self.ask("GET", path, **more), status)

    def post(self, path: str, body: Any, status: int = 201) -> Any:
        return self._checked(self.ask("POST", path, body), status)

    def put(self, path: str, body: Any, status: int = 200, **more: Any) -> Any:
        return self._checked(self.ask("PUT", path, body, **more), status)

    def patch(self, path: str, *operations: Any, status: int = 200, **more: Any) -> Any:
        body = {"schemas": [PATCH], "Operations": list(operations)}
        return self._checked(self.ask("PATCH", path, body, **more), status)

    def delete(self, path: str, status: int = 204) -> Any:
        return self._checked(self.ask("DELETE", path), status)

    def user(self, name: str, /, **more: Any) -> Any:
        """Create a user."""
        return self.post("Users", {"schemas": [USER], "userName": name, **more})

    def group(self, name: str, /, *members: str, **more: Any) -> Any:
        """Create a group of users by their identifiers."""
        member_values = [{"value": key} for key in members]
        return self.post(
            "Groups", {"schemas": [GROUP], "displayName": name, "members": member_values, **more}
        )

    def _checked(self, answer: HttpResponse, status: int) -> Any:
        assert answer.status_code == status, answer.content
        if status == 204:
            assert answer.content == b""
            return None
        assert answer["Content-Type"] == "application/scim+json"
        document = json.loads(answer.content)
        if status >= 400:
            assert document["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]
            assert document["status"] == str(status)
            assert document["detail"]
        return document


@pytest.fixture
def idp(ada: User) -> Idp:
    """The provider, with a token created by the administrator ada."""
    return Idp(make_token(ada, "scim")[1])
