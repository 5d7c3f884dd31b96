"""Access to SCIM: a separate token of an administrator, valid for SCIM only."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from portal.common.errors import InvalidInput, NotAllowed
from portal.common.scopes import Scope
from portal.people.accounts import tokens, users
from portal.people.accounts.models import ApiToken
from tests.factories import UserFactory, make_token
from tests.scim.conftest import Idp

pytestmark = pytest.mark.django_db
PATHS = ("Users", "Groups", "ServiceProviderConfig", "ResourceTypes", "Schemas", "Me", "Bulk")


@pytest.mark.parametrize("path", PATHS)
def test_token_is_required(ada, path):
    idp = Idp("")
    idp.get(path, 401)
    assert idp.ask("GET", path)["WWW-Authenticate"].startswith("Bearer")
    Idp("berth_wrong").get(path, 401)
    browser = Client()
    browser.force_login(ada, backend="django.contrib.auth.backends.ModelBackend")
    assert browser.get(f"/scim/v2/{path}").status_code == 401


def test_other_tokens_are_refused_by_scim(ada):
    others = [scope for scope in Scope.values if scope != Scope.SCIM]
    for scopes in (["all"], others, ["users:read", "users:write"]):
        idp = Idp(make_token(ada, *scopes)[1])
        for path in PATHS:
            idp.get(path, 403)
        idp.post("Users", {"userName": "gina"}, 403)


def test_scim_token_is_refused_elsewhere(idp):
    headers = {"Authorization": f"Bearer {idp.secret}"}
    for path in ("/api/v1/me", "/api/v1/users", "/api/v1/tokens", "/api/v1/workspaces", "/api/v1/teams",
                 "/api/v1/audit-entries", "/api/v1/event-types"):  # fmt: skip
        assert Client().get(path, headers=headers).status_code in (403, 404), path
    assert Client().get("/metrics", headers=headers).status_code in (401, 403)
    made = Client().post("/api/v1/tokens", {"name": "x", "scopes": ["scim"]}, headers=headers)
    assert made.status_code == 403


def test_only_administrators_create_scim_tokens(ada, bob, olga):
    for user in (bob, olga):
        with pytest.raises(NotAllowed):
            tokens.create_token(actor=user, user=user, name="x", scopes=["scim"])
        with pytest.raises(CommandError):
            call_command("create_token", user.username, "--scopes", "scim")
    with pytest.raises(InvalidInput):
        tokens.create_token(actor=ada, user=ada, name="x", scopes=["scim", "users:read"])
    with pytest.raises(InvalidInput):
        tokens.create_token(actor=ada, user=ada, name="x", scopes=["scim", "all"])
    assert not ApiToken.objects.exists()


def test_token_cannot_create_a_scim_token(ada):
    token, secret = make_token(ada)
    with pytest.raises(NotAllowed):
        tokens.create_token(actor=ada, user=ada, name="x", scopes=["scim"], made_with=token)
    answer = Client().post(
        "/api/v1/tokens",
        {"name": "x", "scopes": ["scim"]},
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )
    assert answer.status_code == 403


def test_scim_token_of_a_former_administrator_is_refused(ada):
    otto = UserFactory(username="otto", is_superuser=True)
    idp = Idp(make_token(otto, "scim")[1])
    idp.get("Users")
    users.change(actor=ada, user=otto, roles=["operator"])
    idp.get("Users", 403)


def test_token_page_offers_scim_to_administrators_only(ada, bob):
    for user, offered in ((ada, True), (bob, False)):
        browser = Client()
        browser.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        page = browser.get("/account/tokens/").content.decode()
        assert ('value="scim"' in page) is offered
        browser.post("/account/tokens/", {"name": "x", "scopes": ["scim"], "expires": "7"})
        assert ApiToken.objects.filter(owner=user).exists() is offered


def test_service_provider_config_lists_supported_features(idp):
    config = idp.get("ServiceProviderConfig")
    assert config["patch"]["supported"] is config["etag"]["supported"] is True
    assert config["bulk"]["supported"] is config["sort"]["supported"] is False
    assert config["filter"] == {"supported": True, "maxResults": 200}
    kinds = idp.get("ResourceTypes")
    assert [each["endpoint"] for each in kinds["Resources"]] == ["/Users", "/Groups"]
    assert idp.get("ResourceTypes/User")["schema"] == idp.get("Schemas")["Resources"][0]["id"]
    user = idp.get("Schemas/urn:ietf:params:scim:schemas:core:2.0:User")
    for attribute in user["attributes"]:
        assert {"name", "type", "multiValued", "required", "mutability", "returned"} <= attribute.keys()
    made = idp.user("gina", displayName="G", name={"givenName": "G"}, emails=[{"value": "g@example.org"}])
    known = {each["name"] for each in user["attributes"]} | {"schemas", "id", "meta"}
    assert set(made) <= known
    for path in ("ServiceProviderConfig", "ResourceTypes", "Schemas"):
        idp.get(f"{path}?filter=id%20pr", 403)


def test_unsupported_endpoints_return_501(idp):
    idp.get("Me", 501)
    idp.post("Bulk", {}, 501)


def test_responses_have_scim_format_for_any_accept_header(idp):
    for accept in ("text/html", "application/json", "nonsense", "*/*"):
        idp.get("Users", HTTP_ACCEPT=accept)
