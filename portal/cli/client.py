"""A client of the REST API for programs; the command line is built on it. Knows no Django."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from portal.cli.errors import Missing, NotSignedIn, Refused, Unreachable
from portal.cli.loopback import Connection, LoopbackTransport

API = "/api/v1"
# Keep-alive comments come every ten seconds; three of them missed mean that nobody is there.
STREAM_SILENCE_S = 35.0


class BerthClient:
    """The portal at `base_url`, as the user of `token`. Use it in a `with` statement, or close it.

    Every method raises `NotSignedIn` (bad token), `Missing` (404), `Refused` (another refusal, in the
    portal's words) or `Unreachable` (no answer, or none that a portal gives).
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._transport = transport
        self.http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout_s,
            follow_redirects=False,
            transport=LoopbackTransport(transport),
        )

    # The API's resources.

    def me(self) -> dict[str, Any]:
        return self._object("GET", "/me")

    def templates(self) -> Iterator[dict[str, Any]]:
        return self._rows("/templates")

    def flavors(self) -> Iterator[dict[str, Any]]:
        return self._rows("/flavors")

    def workspaces(self, **filters: str) -> Iterator[dict[str, Any]]:
        """All that the user may see and that pass the filters (`state`, `team`, `owner`, `name`, …)."""
        return self._rows("/workspaces", filters)

    def workspace(self, workspace_id: str) -> dict[str, Any]:
        return self._object("GET", _path(workspace_id))

    def site(self) -> dict[str, Any]:
        """The site as a file: `site`, and `yaml`, its text."""
        return self._object("GET", "/site")

    def send_site(self, what: str, text: str, *, prune: bool) -> dict[str, Any]:
        """`plan` what a site file would do, or `apply` it: `same`, and the `steps`."""
        return self._object("POST", f"/site/{what}", json={"yaml": text, "prune": prune})

    def usage(self, team: str) -> dict[str, Any]:
        """How a team stands: what it uses, waits for, borrows and may have, by resource."""
        return self._object("GET", f"/teams/{quote(team, safe='')}/usage")

    def queue(self, **filters: str) -> Iterator[dict[str, Any]]:
        """What waits, in the order in which it is looked at (`team`, `resource`)."""
        return self._rows("/queue", filters)

    def quota_requests(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Requests for more, newest first (`status`, `team`, `requester`, …)."""
        return self._rows("/quota-requests", filters)

    def quota_request(self, request_id: str) -> dict[str, Any]:
        return self._object("GET", f"/quota-requests/{quote(request_id, safe='')}")

    def budgets(self) -> Iterator[dict[str, Any]]:
        """What teams may spend in a month, and what they have, in hundredths of `currency`."""
        return self._rows("/budgets")

    def ask_for_more(self, *, idempotency_key: str = "", **request: Any) -> dict[str, Any]:
        """Ask: `team`, `resource`, `amount` in base units, `why`, and where wanted `kind` and `until`."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._object("POST", "/quota-requests", json=_given(request), headers=headers)

    def decide(self, request_id: str, verb: str, **given: Any) -> dict[str, Any]:
        """`approve` (`amount`, `until`, `note`), `deny` (`reason`) or `cancel` a request."""
        path = f"/quota-requests/{quote(request_id, safe='')}/{verb}"
        return self._object("POST", path, json=_given(given))

    def event_list(self, workspace_id: str) -> Iterator[dict[str, Any]]:
        """What has happened to a workspace, oldest first."""
        return self._rows(f"{_path(workspace_id)}/events")

    def preview(self, **request: Any) -> dict[str, Any]:
        """The verdict on a request: `template`, `flavor` and, where there is a choice, `team` and
        `environment`; `start_without_gpu` as for a new workspace."""
        return self._object("POST", "/admission/preview", json=_given(request))

    def create_workspace(self, *, idempotency_key: str = "", **request: Any) -> dict[str, Any]:
        """Create one: `template`, `flavor`, and where wanted `team`, `environment`, `name`, `lifetime_hours`
        and `checkpointed`."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._object("POST", "/workspaces", json=_given(request), headers=headers)

    def create_check(self, *, device: str, level: str) -> dict[str, Any]:
        """Have a device checked; what is under way already is answered again."""
        return self._object("POST", "/gpu-checks", json={"device": device, "level": level})

    def create_link_check(self, *, node: str, with_node: str) -> dict[str, Any]:
        """Have the link between two nodes checked, by their ids; what is under way is answered again."""
        return self._object("POST", f"/nodes/{node}/check-link", json={"with_node": with_node})

    def check(self, check_id: str) -> dict[str, Any]:
        """A GPU check with its report."""
        return self._object("GET", f"/gpu-checks/{check_id}")

    def start(self, workspace_id: str) -> dict[str, Any]:
        return self._object("POST", f"{_path(workspace_id)}/start")

    def stop(self, workspace_id: str) -> dict[str, Any]:
        return self._object("POST", f"{_path(workspace_id)}/stop")

    def release_gpu(self, workspace_id: str) -> dict[str, Any]:
        """Have it go on without its GPUs: its app restarts."""
        return self._object("POST", f"{_path(workspace_id)}/release-gpu")

    def attach_gpu(self, workspace_id: str) -> dict[str, Any]:
        """Have it take its GPUs again: its app restarts once they are free."""
        return self._object("POST", f"{_path(workspace_id)}/attach-gpu")

    def resize(self, workspace_id: str, *, flavor: str) -> dict[str, Any]:
        """Give it another flavor: its app restarts once there is room for it."""
        return self._object("POST", f"{_path(workspace_id)}/resize", json={"flavor": flavor})

    def change(self, workspace_id: str, **given: Any) -> dict[str, Any]:
        """Say anew its `name`, `expected_hours` or `priority`; what is left out stays."""
        return self._object("PATCH", _path(workspace_id), json=given)

    def extend(self, workspace_id: str, *, hours: float, idempotency_key: str = "") -> dict[str, Any]:
        """Let it run for longer."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._object("POST", f"{_path(workspace_id)}/extend", json={"hours": hours}, headers=headers)

    def delete(self, workspace_id: str) -> None:
        """Delete it; its user's home stays. Done twice, it is done."""
        self._request("DELETE", _path(workspace_id))

    def logs(self, workspace_id: str, *, tail: int = 200) -> str:
        return str(self._object("GET", f"{_path(workspace_id)}/logs", params={"tail": tail})["text"])

    def packages(self, workspace_id: str) -> dict[str, Any]:
        """What one has installed on top of the workspace's environment."""
        return self._object("GET", f"{_path(workspace_id)}/packages")

    def reset_packages(self, workspace_id: str, *, keep: bool = False) -> dict[str, Any]:
        """Have the next start remove them; with `keep`, take that back."""
        return self._object("POST", f"{_path(workspace_id)}/packages/reset{'/cancel' if keep else ''}")

    def save_packages(self, workspace_id: str, *, name: str, everybody: bool = False) -> dict[str, Any]:
        """Make an environment of them, for the workspace's team or for everybody."""
        given = {"name": name, "everybody": everybody}
        return self._object("POST", f"{_path(workspace_id)}/packages/save", json=given)

    def files(self, workspace_id: str, path: str = "") -> Iterator[dict[str, Any]]:
        """What is in a folder of the home that the workspace uses."""
        offset = 0
        while True:
            params = {"path": path, "offset": offset}
            page = self._object("GET", f"{_path(workspace_id)}/files", params=params)
            yield from page["entries"]
            offset += len(page["entries"])
            if not page["entries"] or offset >= page["total"]:
                return

    def make_folder(self, workspace_id: str, path: str) -> None:
        """Make a folder in the home; the one that it is in is there."""
        self._request("POST", f"{_path(workspace_id)}/files/folders", json={"path": path})

    def delete_files(self, workspace_id: str, paths: list[str]) -> None:
        """Delete files and folders of the home, for good."""
        self._request("POST", f"{_path(workspace_id)}/files/delete", json={"paths": paths})

    def archives(self, workspace_id: str) -> list[dict[str, Any]]:
        """Archives of the home that the workspace uses, the newest first."""
        response = self._request("GET", _archives(workspace_id))
        try:
            rows = response.json()
        except ValueError:
            rows = None
        if not isinstance(rows, list):
            raise self._stranger(response)
        return rows

    def archive(self, workspace_id: str, archive_id: str) -> dict[str, Any]:
        return self._object("GET", _archives(workspace_id, archive_id))

    def make_archive(self, workspace_id: str, *, name: str = "") -> dict[str, Any]:
        """Have one made; without a name it is called by the time."""
        return self._object("POST", _archives(workspace_id), json=_given({"name": name}))

    def restore_archive(self, workspace_id: str, archive_id: str) -> dict[str, Any]:
        """Have the home made anew from it: all that is there now goes."""
        return self._object("POST", f"{_archives(workspace_id, archive_id)}/restore")

    def cancel_archive(self, workspace_id: str, archive_id: str) -> None:
        """Give up what is under way with it; the home is as it was."""
        self._request("POST", f"{_archives(workspace_id, archive_id)}/cancel")

    def delete_archive(self, workspace_id: str, archive_id: str) -> None:
        """Have it deleted, for good."""
        self._request("DELETE", _archives(workspace_id, archive_id))

    def transfer_url(self, workspace_id: str, way: str, **given: Any) -> str:
        """Where a file is to be had, or sent to, once; `way` is `downloads` or `uploads`."""
        return str(self._object("POST", f"{_path(workspace_id)}/files/{way}", json=given)["url"])

    @contextlib.contextmanager
    def transfer(self, method: str, url: str, **more: Any) -> Iterator[httpx.Response]:
        """A request to such an address, without the token: the address is the proof."""
        transport = LoopbackTransport(self._transport)
        with (
            self._errors(),
            httpx.Client(transport=transport, timeout=httpx.Timeout(self._timeout_s, read=600)) as http,
            http.stream(method, url, **more) as response,
        ):
            if response.status_code >= 400:
                response.read()
                said = response.text.strip()[:300] or f"The answer was {response.status_code}."
                raise Refused(said, status=response.status_code, code="transfer_refused")
            yield response

    def events(
        self,
        workspace_id: str,
        *,
        after: int = 0,
        until: float | None = None,
        still_here: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Events as they happen, first those after event `after`; with `still_here` empty ones between them.

        Ends when the portal ends the stream, which it does now and then, or some seconds after
        `until` on the monotonic clock: call it again with the id of the last event.
        """
        return self._stream(
            f"{_path(workspace_id)}/events/stream", after=after, until=until, still_here=still_here
        )

    def feed(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """All that has happened and that you may know of, oldest first (`after`, `type`, `team`, …)."""
        return self._rows("/events", filters)

    def feed_stream(self, *, after: int, **filters: Any) -> Iterator[dict[str, Any]]:
        """The same as it happens, first what came after event `after`.

        Ends when the portal ends the stream: call it again with the id of the last event.
        """
        return self._stream("/events/stream", after=after, params=filters)

    def log_stream(self, workspace_id: str, *, after: int = 0, tail: int = 200) -> Iterator[dict[str, Any]]:
        """What its program writes, as it comes: the last `tail` lines first, or what follows message `after`.

        `text` follows that of the message before; with `over` nothing follows. Ends when the portal ends
        the stream: call it again with the `id` of the last message.
        """
        return self._stream(f"{_path(workspace_id)}/logs/stream", after=after, params={"tail": tail})

    def _stream(
        self,
        path: str,
        *,
        after: int = 0,
        until: float | None = None,
        params: Any = None,
        still_here: bool = False,
    ) -> Iterator[dict[str, Any]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        options: dict[str, Any] = {"headers": headers, "params": params, "timeout": timeout}
        with self._errors(), self.http.stream("GET", API + path, **options) as response:
            if response.status_code >= 400:
                response.read()
            self._check(response)
            for line in response.iter_lines():
                if until is not None and time.monotonic() > until:
                    return
                if line.startswith("data: "):
                    yield json.loads(line[6:])
                elif still_here and line.startswith(":"):
                    yield {}

    def users(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Accounts that pass the filters (`q`, `status`, `role`, `team`); for administrators."""
        return self._rows("/users", filters)

    def invite(self, **account: Any) -> dict[str, Any]:
        """Make an account: `username`, where wanted `email`, `teams`, `roles`. The answer has the link."""
        return self._object("POST", "/users", json=_given(account))

    def deactivate(self, username: str, *, reason: str = "") -> dict[str, Any]:
        return self._object("POST", f"{_user(username)}/deactivate", json=_given({"reason": reason}))

    def reactivate(self, username: str) -> dict[str, Any]:
        return self._object("POST", f"{_user(username)}/reactivate")

    def delete_user(self, username: str, *, workspaces: bool = False, homes: bool = False) -> None:
        """Delete an account for good; with `workspaces` and `homes` what the user has, too."""
        asked = {"workspaces": workspaces, "homes": homes}
        params = {name: "delete" for name, wanted in asked.items() if wanted}
        self._request("DELETE", _user(username), params=params)

    def nodes(self, **filters: str) -> Iterator[dict[str, Any]]:
        """All that pass the filters (`name`, `pool`, …)."""
        return self._rows("/nodes", filters)

    def homes(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Home folders (`team`, `pool`, `user`, `archived`)."""
        return self._rows("/homes", filters)

    def home(self, home_id: int) -> dict[str, Any]:
        return self._object("GET", f"/homes/{home_id}")

    def keep_home(self, home_id: int) -> dict[str, Any]:
        """It counts as used now."""
        return self._object("POST", f"/homes/{home_id}/keep")

    def restore_home(self, home_id: int) -> dict[str, Any]:
        """Have one restored that is archived."""
        return self._object("POST", f"/homes/{home_id}/restore")

    def homes_on(self, node_id: str) -> dict[str, Any]:
        """How many homes lie on a node, how many can be moved, and to where."""
        return self._object("GET", f"/nodes/{quote(node_id, safe='')}/homes")

    def move_homes(self, node_id: str, *, to: str) -> dict[str, Any]:
        """Have all homes of a node moved to another one."""
        return self._object("POST", f"/nodes/{quote(node_id, safe='')}/homes", json={"to": to})

    def home_evacuations(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Moves of all homes of a node (`from_node`, `pool`, `state`), the newest first."""
        return self._rows("/home-evacuations", filters)

    def home_evacuation(self, evacuation_id: str) -> dict[str, Any]:
        return self._object("GET", f"/home-evacuations/{quote(evacuation_id, safe='')}")

    def orphans(self, **filters: str) -> Iterator[dict[str, Any]]:
        """What lies on nodes and nobody owns, and what has gone of late (`pool`, `node`, `kind`, `state`)."""
        return self._rows("/orphans", filters)

    def orphan(self, orphan_id: str) -> dict[str, Any]:
        return self._object("GET", f"/orphans/{quote(orphan_id, safe='')}")

    def delete_orphan(self, orphan_id: str, *, confirm: str = "") -> dict[str, Any]:
        """Have its node remove it; of a home folder `confirm` is its name."""
        path = f"/orphans/{quote(orphan_id, safe='')}/delete"
        return self._object("POST", path, json=_given({"confirm": confirm}))

    def efficiency(self, workspace_id: str) -> dict[str, Any]:
        """How much of its GPU time a workspace uses (`used`, `measured`: shares), and a `hint` or none."""
        return self._object("GET", f"{_path(workspace_id)}/efficiency")

    def rebalance_proposals(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Proposals to move running work (`state`), the newest first."""
        return self._rows("/rebalance-proposals", filters)

    def apply_rebalance_proposal(self, proposal_id: str) -> dict[str, Any]:
        """Have its workspaces asked to move, all of them or none."""
        return self._object("POST", f"/rebalance-proposals/{quote(proposal_id, safe='')}/apply")

    def service_accounts(self, team: str) -> Iterator[dict[str, Any]]:
        """A team's accounts for programs."""
        return self._rows(_services(team))

    def create_service_account(self, team: str, **account: str) -> dict[str, Any]:
        """Make one: `name` and, where wanted, `description`."""
        return self._object("POST", _services(team), json=_given(account))

    def deactivate_service_account(self, team: str, username: str, *, reason: str = "") -> dict[str, Any]:
        path = f"{_services(team, username)}/deactivate"
        return self._object("POST", path, json=_given({"reason": reason}))

    def reactivate_service_account(self, team: str, username: str) -> dict[str, Any]:
        return self._object("POST", f"{_services(team, username)}/reactivate")

    def service_tokens(self, team: str, username: str) -> Iterator[dict[str, Any]]:
        """The tokens of a service account that work, without their secrets."""
        return self._rows(f"{_services(team, username)}/tokens")

    def create_service_token(self, team: str, username: str, **token: Any) -> dict[str, Any]:
        """Make one: `name`, where wanted `scopes` and `expires_at`. The answer has the secret, this once."""
        return self._object("POST", f"{_services(team, username)}/tokens", json=_given(token))

    def rotate_token(self, token_id: str, *, overlap_hours: int) -> dict[str, Any]:
        """A new token like this one, which ends after the hours. The answer has the secret, this once."""
        path = f"/tokens/{quote(token_id, safe='')}/rotate"
        return self._object("POST", path, json={"overlap_hours": overlap_hours})

    def revoke_token(self, token_id: str) -> None:
        self._request("POST", f"/tokens/{quote(token_id, safe='')}/revoke")

    def secrets(self, *, team: str = "", template: str = "") -> Iterator[dict[str, Any]]:
        """Names and facts of one's own secrets, a team's or a template's."""
        return self._rows(_secrets(team, template))

    def put_secret(self, name: str, *, team: str = "", template: str = "", **secret: Any) -> dict[str, Any]:
        """Save one: `value`, or `vault_path` and `vault_key`; and `kind`, `description`, `everywhere`."""
        path = f"{_secrets(team, template)}/{quote(name, safe='')}"
        return self._object("PUT", path, json=_given(secret))

    def delete_secret(self, name: str, *, team: str = "", template: str = "") -> None:
        self._request("DELETE", f"{_secrets(team, template)}/{quote(name, safe='')}")

    def environments(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Software environments that one may see and that pass the filters (`search`, `team`, …)."""
        return self._rows("/environments", filters)

    def environment(self, slug: str) -> dict[str, Any]:
        return self._object("GET", _environment(slug))

    def create_environment(self, **environment: Any) -> dict[str, Any]:
        """Make one, and have it built: `name`, `source` and, where wanted, `slug`, `team` and others."""
        return self._object("POST", "/environments", json=_given(environment))

    def build_environment(self, slug: str, **source: str) -> dict[str, Any]:
        """Build another version of `source`, or the newest one as it is. Answers with the version."""
        return self._object("POST", f"{_environment(slug)}/builds", json=_given(source))

    def environment_version(self, slug: str, number: int) -> dict[str, Any]:
        return self._object("GET", f"{_environment(slug)}/versions/{number}")

    def environment_versions(self, slug: str) -> Iterator[dict[str, Any]]:
        """Its versions, the newest first."""
        return self._rows(f"{_environment(slug)}/versions")

    def environment_builds(self, slug: str, number: int) -> Iterator[dict[str, Any]]:
        """The builds of a version, the newest first."""
        return self._rows(f"{_environment(slug)}/builds", {"version": str(number)})

    def build_log(self, slug: str, build_id: str) -> str:
        """The end of what a build has written."""
        path = f"{_environment(slug)}/builds/{quote(build_id, safe='')}/log"
        return self._request("GET", path, headers={"Accept": "text/plain"}).text

    def connect(self, workspace: Mapping[str, Any]) -> Connection:
        """The workspace's own origin, for HTTP and WebSockets; the token needs `workspaces:connect`."""
        return Connection(workspace["url"], self._token, timeout_s=self._timeout_s, transport=self._transport)

    def workspace_http(self, workspace_id: str) -> httpx.Client:
        """An HTTP client on the workspace's origin, signed in; the caller closes it.

        Names below `localhost`, which Python does not resolve, are reached by their Host header.
        """
        return self.connect(self.workspace(workspace_id)).http

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> BerthClient:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    # One request, and what its answer means.

    def _rows(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        page = self._object("GET", path, params=_given(params or {}))
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            # The portal's own address in it may be another than ours: a proxy stands between.
            query = urlsplit(page["next"]).query
            page = self._object("GET", f"{path}?{query}")

    def _object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._request(method, path, **options)
        try:
            body = response.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise self._stranger(response)
        return body

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._errors():
            response = self.http.request(method, API + path, **options)
        self._check(response)
        return response

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn httpx's errors into ours."""
        try:
            yield
        except httpx.ConnectError as error:
            if _is_certificate(error):
                raise Unreachable(
                    f"The certificate of {self.base_url} is not trusted: {error}.",
                    "Set SSL_CERT_FILE to the file of your certificate authority.",
                ) from error
            raise Unreachable(
                f"{self.base_url} does not answer: {error}.",
                "Check the address, and whether Berth runs there.",
            ) from error
        except httpx.TimeoutException as error:
            raise Unreachable(
                f"{self.base_url} did not answer in time.", "Try again; if it stays, tell its operator."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(
                f"The connection to {self.base_url} failed: {error or type(error).__name__}.",
                "Check the address, then try again.",
            ) from error

    def _check(self, response: httpx.Response) -> None:
        """Raise what the answer means, unless it is a success."""
        if response.is_success:
            return
        problem: Any = None
        if response.headers.get("Content-Type", "").startswith("application/problem+json"):
            with contextlib.suppress(ValueError):
                problem = response.json()
        if not isinstance(problem, dict):
            raise self._stranger(response)
        message = _sentence(problem)
        next_action = str(problem.get("next_action", ""))
        if response.status_code == 401:
            raise NotSignedIn(message, next_action or f"Run `berth login {self.base_url}` with a new token.")
        if response.status_code == 404:
            raise Missing(message, next_action)
        raise Refused(
            message,
            next_action,
            status=response.status_code,
            code=str(problem.get("code", "")),
            request_id=str(problem.get("request_id", "")),
        )

    def _stranger(self, response: httpx.Response) -> Unreachable:
        if response.status_code in (502, 503, 504):
            return Unreachable(
                f"{self.base_url} is there, but its portal does not answer ({response.status_code}).",
                "Wait until it has started; `make status` on its machine says more.",
            )
        return Unreachable(
            f"{self.base_url} answered {response.status_code}, and not as a Berth portal does.",
            "Check the address.",
        )


def _path(workspace_id: str) -> str:
    return f"/workspaces/{quote(str(workspace_id), safe='')}"


def _archives(workspace_id: str, archive_id: str = "") -> str:
    one = f"/{quote(archive_id, safe='')}" if archive_id else ""
    return f"{_path(workspace_id)}/files/archives{one}"


def _environment(slug: str) -> str:
    return f"/environments/{quote(slug, safe='')}"


def _user(username: str) -> str:
    return f"/users/{quote(username, safe='')}"


def _services(team: str, username: str = "") -> str:
    accounts = f"/teams/{quote(team, safe='')}/service-accounts"
    return f"{accounts}/{quote(username, safe='')}" if username else accounts


def _secrets(team: str, template: str) -> str:
    if team:
        return f"/teams/{quote(team, safe='')}/secrets"
    return f"/templates/{quote(template, safe='')}/secrets" if template else "/me/secrets"


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _sentence(problem: Mapping[str, Any]) -> str:
    """The problem's sentence, and those about each field."""
    parts = [str(problem.get("detail") or problem.get("title") or "The portal refused.")]
    errors = problem.get("errors")
    if isinstance(errors, dict):
        for name, sentences in errors.items():
            for sentence in sentences if isinstance(sentences, list) else [sentences]:
                if str(sentence) not in (problem.get("next_action"), problem.get("detail")):
                    parts.append(f"{name}: {sentence}" if name else str(sentence))
    return " ".join(parts)


def _is_certificate(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return "CERTIFICATE_VERIFY_FAILED" in str(error)
