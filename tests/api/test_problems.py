"""Every error is a problem document (RFC 9457)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from rest_framework import serializers

from portal.common.problems import exception_handler
from portal.workspaces import selectors
from tests.api.conftest import V1, problem
from tests.factories import make_token

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "path",
    [
        *("/api/", "/api/v1/", "/api/v1", "/api/v2/workspaces", "/api/v1/nonsense"),
        *("/api/v1/workspaces/not-a-uuid", "/api/v1/workspaces/x/y/z/"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path_is_404(path: str, method: str) -> None:
    problem(Client(enforce_csrf_checks=True).generic(method, path), 404, "not_found")


def test_unknown_method_is_405(api: Any, bob: Any) -> None:
    response = api(bob).put("workspaces", {})
    problem(response, 405, "method_not_allowed")
    assert "POST" in response["Allow"]


def test_another_media_type_is_415(api: Any, bob: Any) -> None:
    response = api(bob).client.post(V1 + "workspaces", {"name": "x"})
    problem(response, 415, "unsupported_media_type")


def test_another_accept_type_is_406(api: Any, bob: Any) -> None:
    problem(api(bob).get("workspaces", Accept="text/html"), 406, "not_acceptable")


@pytest.mark.parametrize(
    "body",
    ["{", "NaN", "\xff", "[1]", '"text"', "null", '{"name": "\\ud800"}', '{"\\ud800": 1}', '{"a\\u0000": 1}'],
)
def test_malformed_body_is_400(api: Any, bob: Any, body: str) -> None:
    response = api(bob).client.post(
        V1 + "workspaces", body.encode("latin-1"), content_type="application/json"
    )
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["status"] == 400


def test_body_above_the_limit_is_413(api: Any, bob: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    problem(api(bob).post("workspaces", {"name": "x" * 200}), 413, "too_large")


class _Claim(serializers.Serializer[Any]):
    claim = serializers.CharField()


class _Nested(serializers.Serializer[Any]):
    git = _Claim()
    rules = _Claim(many=True)
    argv = serializers.ListField(child=serializers.IntegerField())

    def validate(self, attrs: Any) -> Any:
        raise serializers.ValidationError("Not together.")


def test_nested_errors_are_flattened_to_fields_and_sentences() -> None:
    def errors_of(body: Any) -> Any:
        serializer = _Nested(data=body)
        assert not serializer.is_valid()
        answer = exception_handler(serializers.ValidationError(serializer.errors), {})
        assert answer is not None
        return answer.data["errors"]

    assert errors_of({"git": {}, "rules": [{"claim": "x"}, {}], "argv": ["x", 1, "y"]}) == {
        "git.claim": ["This field is required."],
        "rules.1.claim": ["This field is required."],
        "argv": ["A valid integer is required."] * 2,
    }
    assert errors_of({"git": {"claim": "x"}, "rules": [], "argv": []}) == {"": ["Not together."]}


def test_internal_error_reveals_no_details(
    api: Any, bob: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(actor: Any) -> Any:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(selectors, "rows_for", broken)
    program = api(bob)
    program.client.raise_request_exception = False

    response = program.get("workspaces")

    problem(response, 500, "internal_error")
    assert b"swordfish" not in response.content
    assert "GET /api/v1/workspaces failed" in caplog.text


def test_internal_error_reaches_monitoring(api: Any, bob: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(actor: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(selectors, "rows_for", broken)
    with pytest.raises(RuntimeError):
        api(bob).get("workspaces")


def test_session_writes_need_a_csrf_token(bob: Any) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(bob, backend="django.contrib.auth.backends.ModelBackend")

    assert browser.get(V1 + "workspaces").status_code == 200
    response = browser.post(V1 + "tokens", {"name": "x"}, content_type="application/json")
    assert "CSRF" in problem(response, 403, "permission_denied")["detail"]


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer x", "Bearer berth_x", "bearer berth_\xe4"])
def test_invalid_token_is_401(header: str) -> None:
    response = Client(headers={"Authorization": header}).get(V1 + "me")
    problem(response, 401, "authentication_failed")
    assert response["WWW-Authenticate"] == 'Bearer realm="Berth"'


def test_token_in_the_url_is_ignored(bob: Any) -> None:
    _, secret = make_token(bob)
    problem(Client().get(f"{V1}me?token={secret}"), 401, "not_authenticated")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("workspaces", {"template": "jupyterlab", "flavor": "cpu-small"}),
        ("templates", {"slug": "nobody_x", "name": "X", "program": "bash", "argv": ["bash", "{port}"]}),
        ("environments", {"name": "X", "source": "numpy"}),
        ("quotas", {"resource": "gpu:h100", "quota": 1}),
        ("member-caps", {"resource": "gpu:h100", "amount": 1}),
        ("booking-permissions", {"username": "bob"}),
        (
            "reservations",
            {
                "title": "Paper",
                "amounts": {"gpu:h100": 1000},
                "starts_at": "2030-01-01T00:00:00Z",
                "ends_at": "2030-01-02T00:00:00Z",
            },
        ),
    ],
)
def test_unknown_team_in_a_body_is_a_field_error(
    api: Any, olga: Any, petra: Any, catalog: Any, path: str, body: dict[str, Any]
) -> None:
    actor = petra if path == "booking-permissions" else olga
    answer = problem(api(actor).post(path, {**body, "team": "nobody"}), 400, "invalid")
    assert list(answer["errors"]) == ["team"], answer


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "workspaces", {"name": 5, "team": "vision", "template": "jupyterlab", "flavor": "cpu-small"}),
    ("PUT", "me/dotfiles", {"url": "https://example.org/dotfiles.git", "secret": 0}),
    ("POST", "workspaces", {"secrets": [7], "template": "jupyterlab", "flavor": "cpu-small"}),
    ("POST", "workspaces", {"checkpointed": "yes", "template": "jupyterlab", "flavor": "cpu-small"}),
])  # fmt: skip
def test_numbers_are_not_accepted_as_text_or_boolean(
    api: Any, bob: Any, team: Any, method: str, path: str, body: Any
) -> None:
    wrong = next(iter({"name", "secret", "secrets", "checkpointed"} & body.keys()))
    said = problem(api(bob).send(method, path, body), 400, "invalid")
    assert list(said["errors"]) == [wrong], said
