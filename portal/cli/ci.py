"""`berth login --ci`: exchanges the signed token of a CI job for a short-lived token of a service account."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from portal.cli.errors import NotSignedIn, Unreachable
from portal.cli.loopback import LoopbackTransport

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  (a name)
TIMEOUT_S = 30.0


def token(
    url: str,
    environ: Mapping[str, str],
    *,
    audience: str = "",
    service_account: str = "",
    transport: httpx.BaseTransport | None = None,
) -> str:
    """Return a token of the portal. Raises `NotSignedIn` (no job token, or rejected) or `Unreachable`."""
    with httpx.Client(timeout=TIMEOUT_S, transport=LoopbackTransport(transport)) as client:
        try:
            return _exchange(client, url, _id_token(client, environ, audience or url), service_account)
        except httpx.HTTPError as error:
            raise Unreachable(f"No answer: {error}.", "Try again.") from error


def _id_token(client: httpx.Client, environ: Mapping[str, str], audience: str) -> str:
    """Return the job's token: `BERTH_ID_TOKEN` (as in GitLab), or requested from GitHub Actions."""
    if id_token := environ.get("BERTH_ID_TOKEN", ""):
        return id_token
    request_url, secret = (environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{name}", "") for name in ("URL", "TOKEN"))
    if not request_url or not secret:
        raise NotSignedIn(
            "This job has no token of its platform.",
            "On GitHub give the job `permissions: id-token: write`; "
            "on GitLab name `BERTH_ID_TOKEN` in id_tokens.",
        )
    address = httpx.URL(request_url)
    answer = client.get(
        address.copy_merge_params({"audience": audience}), headers={"Authorization": f"Bearer {secret}"}
    )
    value = _object(answer).get("value")
    if answer.status_code != 200 or not isinstance(value, str):
        raise Unreachable(f"GitHub gave no token (status {answer.status_code}).", "Try again.")
    return value


def _exchange(client: httpx.Client, url: str, id_token: str, service_account: str) -> str:
    form = {"grant_type": GRANT_TYPE, "subject_token_type": ID_TOKEN, "subject_token": id_token}
    if service_account:
        form["service_account"] = service_account
    answer = client.post(f"{url}/api/v1/token-exchange", data=form)
    body = _object(answer)
    access_token = body.get("access_token")
    if answer.status_code == 200 and isinstance(access_token, str):
        return access_token
    description = body.get("error_description") or f"The portal answered with status {answer.status_code}."
    raise NotSignedIn(
        str(description), "The audit log of the portal says which condition of which rule failed."
    )


def _object(answer: httpx.Response) -> dict[str, object]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
