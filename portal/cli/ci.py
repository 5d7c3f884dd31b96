"""`berth login --ci`: exchanges the signed token of a CI job for a short-lived token of a service account."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from portal.cli.errors import NotSignedIn, Unreachable
from portal.cli.loopback import LoopbackTransport

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  (a name)
TIMEOUT_S = 30.0
RETRY_FOR_S = 60.0
RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class JobToken:
    """A token of the portal, and the key that allows exchanging the same ID token again."""

    token: str = field(repr=False)
    key: str = field(repr=False)


def token(
    url: str,
    environ: Mapping[str, str],
    *,
    audience: str = "",
    service_account: str = "",
    key: str = "",
    transport: httpx.BaseTransport | None = None,
) -> JobToken:
    """Return a token of the portal. `key` is the one of an earlier exchange in this job.

    Tries for `RETRY_FOR_S`, also after a lost response. Raises `NotSignedIn` (no job token, or rejected) or
    `Unreachable`.
    """
    key = key or secrets.token_urlsafe(32)
    ends_at = time.monotonic() + RETRY_FOR_S
    with httpx.Client(timeout=TIMEOUT_S, transport=LoopbackTransport(transport)) as client:
        id_token = ""
        while True:
            try:
                id_token = id_token or _id_token(client, environ, audience or url)
                return JobToken(_exchange(client, url, id_token, service_account, key), key)
            except httpx.HTTPError as error:
                failure = Unreachable(f"{url} does not answer: {error}.", "Try again.")
            except Unreachable as error:
                failure = error
            if time.monotonic() > ends_at:
                raise failure
            time.sleep(RETRY_S)


def _id_token(client: httpx.Client, environ: Mapping[str, str], audience: str) -> str:
    """Return the job's ID token: `BERTH_ID_TOKEN` (as in GitLab), or one from GitHub Actions."""
    if id_token := environ.get("BERTH_ID_TOKEN", ""):
        return id_token
    request_url, secret = (environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{name}", "") for name in ("URL", "TOKEN"))
    if not request_url or not secret:
        raise NotSignedIn(
            "This job has no identity token.",
            "On GitHub, set `permissions: id-token: write` for the job. "
            "On GitLab, add `BERTH_ID_TOKEN` to id_tokens.",
        )
    address = httpx.URL(request_url)
    answer = client.get(
        address.copy_merge_params({"audience": audience}), headers={"Authorization": f"Bearer {secret}"}
    )
    value = _object(answer).get("value")
    if answer.status_code != 200 or not isinstance(value, str):
        raise Unreachable(f"GitHub issued no token (status {answer.status_code}).", "Try again.")
    return value


def _exchange(client: httpx.Client, url: str, id_token: str, service_account: str, key: str) -> str:
    form = {"grant_type": GRANT_TYPE, "subject_token_type": ID_TOKEN, "subject_token": id_token}
    if service_account:
        form["service_account"] = service_account
    answer = client.post(f"{url}/api/v1/token-exchange", data=form, headers={"Idempotency-Key": key})
    body = _object(answer)
    token = body.get("access_token")
    if answer.status_code == 200 and isinstance(token, str):
        return token
    description = body.get("error_description") or f"The portal answered with status {answer.status_code}."
    if answer.status_code == 429 or answer.status_code >= 500:
        raise Unreachable(str(description), "Try again.")
    raise NotSignedIn(
        str(description), "The portal's audit log names the rule and the condition that failed."
    )


def _object(answer: httpx.Response) -> dict[str, object]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
