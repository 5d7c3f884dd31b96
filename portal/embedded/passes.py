"""The front door's way past forward-auth, for requests like one that it has let through: by its passes.

`portal.common.passes` has their form. Whatever is not plainly such a request, or has no pass, is asked about
as ever: this way refuses nobody. It takes a request whose credential is strictly of one form, and whose
headers leave no doubt that no other origin's page has sent it (`ClientRequest.foreign` is the rule behind).

Matchers of one set are tried in no order, and several keys of `vars` or `vars_regexp` mean one of them. So
what has to come first, or together, stands in routes inside of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.common import passes as form

HOST = "host"
"""The name of the matcher whose first group is the workspace's name."""
FOUND = "{http.matchers.file.relative}"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_HEADER = "{http.request.header.%s}"
"""All values of that header, with commas between them; empty where there is none."""
_OWN_COOKIES = "berth_ws"
_WAYS = "ways"
"""Of these only the first that matches is gone: an app's secret, once it is set, looks like a token."""
_KIND, _SECRET = "{http.regexp.pass.3}", "{http.regexp.pass.4}"


@dataclass(frozen=True, slots=True)
class Passes:
    """`folder` is where they are, `secret` the gateway's.

    `tokens`: whether tokens have some. Theirs hold the address that they come from, which is not the peer's
    where proxies stand in front.
    """

    folder: Path
    secret: str
    tokens: bool = True


def route(passes: Passes, *, https: bool, own_headers: str, to_app: dict[str, Any]) -> dict[str, Any]:
    """The route, after which the one that asks forward-auth has to come.

    `own_headers` are what no app may see. `to_app` goes to the socket that the matcher `pass` has found.
    """
    cookie = "__Host-berth_ws" if https else "berth_ws"
    scheme = "https" if https else "http"
    ways = [_by_cookie(passes, cookie)]
    if passes.tokens:
        ways.append(_by_token(passes))
    return {
        "match": [
            {
                "method": METHODS,
                "header": dict.fromkeys(_ASKED),
                "not": [
                    # What lasts goes by way of the gateway process.
                    {"vars_regexp": {_HEADER % "Accept": {"pattern": "(?i)text/event-stream"}}},
                    _other(_HEADER % "Connection", "", "keep-alive", "close"),
                    _other(_HEADER % "Sec-Fetch-Site", "", "same-origin", "none"),
                    _other(_HEADER % "Origin", "", f"{scheme}://{{http.request.hostport}}"),
                ],
            }
        ],
        "handle": [
            {
                "handler": "subroute",
                "routes": [
                    *ways,
                    {
                        "match": [{"vars": {"passed": ["1"]}}],
                        "handle": [
                            {"handler": "vars", "door": "workspace"},
                            {"handler": "headers", "request": {"delete": [own_headers]}},
                            to_app,
                        ],
                        "terminal": True,
                    },
                ],
            }
        ],
    }


# Forward-auth answers for service workers, and is asked about every handshake.
_ASKED = ("Service-Worker", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version")


def _other(placeholder: str, *values: str) -> dict[str, Any]:
    """Matches what has none of these values."""
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
                # One header with one cookie of ours: headers that were sent twice are joined by commas.
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
            _found(
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
            _found(
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


def _found(passes: Passes, credential: str, kinds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Looks for the pass; where it is there, says so, and gives the app what its kind says."""
    key = form.key_of(passes.secret)
    wanted = f"{key}/{{time.now.unix}}/{{http.regexp.{HOST}.1}}/{credential},*"
    name = f"({form.WORKSPACE})/[^/,]+,({form.GENERATION}),([{''.join(kinds)}]),({form.SECRET})?"
    # Not terminal: that would end all routes around it as well, with an empty answer.
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
                            "try_files": [wanted],
                            # What the folder has is there: it is not opened once more to see.
                            "try_policy": "first_exist_fallback",
                        }
                    }
                ],
                "handle": [
                    {
                        "handler": "subroute",
                        "routes": [
                            {
                                # From the beginning, so that it is read once and never again.
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
