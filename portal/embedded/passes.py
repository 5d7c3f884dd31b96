"""Lets requests with a pass from an earlier, authorized request skip forward-auth at the front door.

`portal.common.passes` defines the format. A request that does not clearly match, or has no pass, goes to
forward-auth, so this path never rejects a request. It accepts only one form of credential, and only headers
that rule out requests from pages of other origins (see `ClientRequest.foreign`).

Caddy evaluates the matchers of one set in no order, and several keys of `vars` or `vars_regexp` as
alternatives. Conditions that must come first, or together, are therefore in nested routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.common import passes as form

HOST = "host"
"""Name of the matcher whose first group is the workspace's name."""
FOUND = "{http.matchers.file.relative}"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_HEADER = "{http.request.header.%s}"
"""All values of the header, separated by commas; empty if absent."""
_OWN_COOKIES = "berth_ws"
_WAYS = "ways"
"""Route group, of which only the first match runs. Else an app's secret, once set, would match as a token."""
_KIND, _SECRET = "{http.regexp.pass.3}", "{http.regexp.pass.4}"


@dataclass(frozen=True, slots=True)
class Passes:
    """`folder` contains the passes, `secret` is the gateway's secret.

    `tokens`: whether tokens have passes. Such passes contain the client's address, which behind proxies is
    not the peer's address.
    """

    folder: Path
    secret: str
    tokens: bool = True


def route(passes: Passes, *, https: bool, own_headers: str, to_app: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the route. The route with forward-auth has to follow it.

    `own_headers` are hidden from apps. `to_app` are handlers that forward to the socket from the matcher
    `pass`.
    """
    cookie = "__Host-berth_ws" if https else "berth_ws"
    scheme = "https" if https else "http"
    routes = [_by_cookie(passes, cookie)]
    if passes.tokens:
        routes.append(_by_token(passes))
    return {
        "match": [
            {
                "method": METHODS,
                "header": dict.fromkeys(_EXCLUDED_HEADERS),
                "not": [
                    # Long-lived streams go through the gateway process.
                    {"vars_regexp": {_HEADER % "Accept": {"pattern": "(?i)text/event-stream"}}},
                    _without_values(_HEADER % "Connection", "", "keep-alive", "close"),
                    _without_values(_HEADER % "Sec-Fetch-Site", "", "same-origin", "none"),
                    _without_values(_HEADER % "Origin", "", f"{scheme}://{{http.request.hostport}}"),
                ],
            }
        ],
        "handle": [
            {
                "handler": "subroute",
                "routes": [
                    *routes,
                    {
                        "match": [{"vars": {"passed": ["1"]}}],
                        "handle": [
                            {"handler": "vars", "door": "workspace"},
                            {"handler": "headers", "request": {"delete": [own_headers]}},
                            *to_app,
                        ],
                        "terminal": True,
                    },
                ],
            }
        ],
    }


# Forward-auth handles service workers and authorizes every handshake.
_EXCLUDED_HEADERS = ("Service-Worker", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version")


def _without_values(placeholder: str, *values: str) -> dict[str, Any]:
    """Return a matcher for requests with none of these values."""
    return {"not": [{"vars": {placeholder: list(values)}}]}


def _by_cookie(passes: Passes, cookie: str) -> dict[str, Any]:
    own = f"{cookie}={form.COOKIE}"
    removed = [{"search_regexp": f"^{own}(; ?|$)|; ?{own}", "replace": ""}]
    replaced = [{"search_regexp": own, "replace": f"{form.EDITOR_COOKIE}={_SECRET}"}]
    bare = {
        "handler": "subroute",
        "routes": [
            {
                "match": [{"vars": {_HEADER % "Cookie": [""]}}],
                "handle": [{"handler": "headers", "request": {"delete": ["Cookie"]}}],
            }
        ],
    }
    return {
        "group": _WAYS,
        "match": [
            {
                # One header with one of our cookies. Repeated headers are joined by commas.
                "vars_regexp": {
                    _HEADER % "Cookie": {
                        "name": "shown",
                        "pattern": f"^(?:[^,]*; ?)?{cookie}=({form.COOKIE})(?:;[^,]*)?$",
                    }
                },
                "not": [
                    {"vars_regexp": {_HEADER % "Cookie": {"pattern": f"(?i){_OWN_COOKIES}.*{_OWN_COOKIES}"}}}
                ],
            }
        ],
        "handle": [
            _pass_lookup(
                passes,
                "{http.regexp.shown.1}",
                {
                    form.BEARER: [_headers(set=_BEARER, replace={"Cookie": removed}), bare],
                    form.EDITOR: [_headers(delete=["Authorization"], replace={"Cookie": replaced})],
                    form.NOTHING: [_headers(delete=["Authorization"], replace={"Cookie": removed}), bare],
                },
            )
        ],
    }


def _by_token(passes: Passes) -> dict[str, Any]:
    editor = {"Cookie": [f"{form.EDITOR_COOKIE}={_SECRET}"]}
    return {
        "group": _WAYS,
        "match": [
            {
                "vars": {_HEADER % "Cookie": [""]},
                "vars_regexp": {
                    _HEADER % "Authorization": {"name": "shown", "pattern": f"^Bearer ({form.TOKEN})$"}
                },
            }
        ],
        "handle": [
            _pass_lookup(
                passes,
                "{http.regexp.shown.1}@{http.request.remote.host}",
                {
                    form.BEARER: [_headers(set=_BEARER)],
                    form.EDITOR: [_headers(set=editor, delete=["Authorization"])],
                    form.NOTHING: [_headers(delete=["Authorization"])],
                },
            )
        ],
    }


_BEARER = {"Authorization": [f"Bearer {_SECRET}"]}


def _headers(**changes: Any) -> dict[str, Any]:
    return {"handler": "headers", "request": changes}


def _pass_lookup(passes: Passes, credential: str, kinds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a route that looks up the pass and, if found, runs the handlers of the pass's kind."""
    key = form.key_of(passes.secret)
    pass_file = f"{key}/{{time.now.unix}}/{{http.regexp.{HOST}.1}}/{credential},*"
    name = f"({form.WORKSPACE})/[^/,]+,({form.GENERATION}),([{''.join(kinds)}]),({form.SECRET})?"
    # Not terminal, because that would end all enclosing routes too, with an empty response.
    routes: list[dict[str, Any]] = [
        {"match": [{"vars": {_KIND: [kind]}}], "handle": [{"handler": "vars", "passed": "1"}, *handle]}
        for kind, handle in kinds.items()
    ]
    return {
        "handler": "subroute",
        "routes": [
            {
                "match": [
                    {
                        "file": {
                            "root": str(passes.folder),
                            "try_files": [pass_file],
                            # The glob only matches existing entries, so no further check of the file is
                            # needed.
                            "try_policy": "first_exist_fallback",
                        }
                    }
                ],
                "handle": [
                    {
                        "handler": "subroute",
                        "routes": [
                            {
                                # Anchored at the beginning, so that it is parsed once.
                                "match": [
                                    {
                                        "vars_regexp": {
                                            FOUND: {"name": "pass", "pattern": f"^/{key}/[0-9]+/{name}$"}
                                        }
                                    }
                                ],
                                "handle": [{"handler": "subroute", "routes": routes}],
                            }
                        ],
                    }
                ],
            }
        ],
    }
