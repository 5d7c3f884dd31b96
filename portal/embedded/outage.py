"""Responses for when web, the gateway process or a workspace does not answer.

Pages are part of the front door's configuration; programs get problem documents.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from portal.common.front_door import PERMISSIONS_POLICY

RETRY_S = 5

_CSS = """\
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 0; display: grid; place-items: center; min-height: 100vh;
  background: #f6f7f9; color: #1b1f24; }
main { max-width: 34rem; margin: 1rem; padding: 2rem; background: #fff; border: 1px solid #d5d9e0;
  border-radius: .5rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.3; margin: 0 0 .75rem; }
p { margin: .75rem 0; }
a { display: inline-block; min-height: 24px; padding: .5rem 1rem; border-radius: .375rem; background: #0b57b7;
  color: #fff; text-decoration: none; }
a:focus-visible { outline: 3px solid #d97706; outline-offset: 2px; }
small { color: #57606a; }
@media (prefers-color-scheme: dark) {
  body { background: #0f1216; color: #e6e9ee; }
  main { background: #171b21; border-color: #343b45; }
  a { background: #82b4ff; color: #0f1216; }
  small { color: #a3acb8; }
}
"""


def _page(status: int, title: str, heading: str, text: str, advice: str) -> str:
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{RETRY_S}">
<title>{title} · Berth</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>{heading}</h1>
<p>{text}</p>
<p>This page retries every {RETRY_S} seconds. {advice}</p>
<p><a href="">Try again</a></p>
<p><small>{status}</small></p>
</main>
</body>
</html>
"""


def _problem(status: int, code: str, title: str, detail: str) -> str:
    document = {
        "type": f"urn:berth:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        # Apps such as JupyterLab show this message.
        "message": f"{title}. {detail}",
    }
    return json.dumps(document) + "\n"


def _answer(status: int, kind: str, body: str, **headers: str) -> dict[str, Any]:
    """Return a Caddy handler for a static response."""
    style = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    sent_headers = {
        "Content-Type": kind,
        "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Permissions-Policy": PERMISSIONS_POLICY,
        "Cache-Control": "no-store",
        **headers,
    }
    return {
        "handler": "static_response",
        "status_code": status,
        "headers": {name: [value] for name, value in sent_headers.items()},
        "body": body,
    }


_HTML = "text/html; charset=utf-8"
_JSON = "application/problem+json"

NOT_FOUND = _answer(404, _JSON, _problem(404, "not_found", "Not found", "Check the address."))
_TOO_LARGE = _answer(
    413, _JSON, _problem(413, "too_large", "Request too large", "The limit for a request body is 4 MiB.")
)
_BUSY = _answer(
    503,
    _JSON,
    _problem(
        503,
        "unavailable",
        "Too many large requests",
        "The portal receives too many large requests. Try again in a few seconds.",
    ),
    **{"Retry-After": str(RETRY_S)},
)


def routes() -> list[dict[str, Any]]:
    """Return Caddy's routes for its own errors.

    The variable `door` is the kind of upstream: `portal` or `workspace`, or `large` before a large body is
    read. Responses from the portal and from workspaces are forwarded unchanged, regardless of their status.
    """
    result = [
        {"match": [_error("portal", "413")], "handle": [_TOO_LARGE], "terminal": True},
        {"match": [_error("large", "503")], "handle": [_BUSY], "terminal": True},
    ]
    for status in (502, 504):
        pages = {
            "portal": _page(
                status,
                "Berth is starting",
                "Berth does not answer",
                "The portal is starting or being restarted. Running work continues, and nothing is lost.",
                "If this persists, contact an operator.",
            ),
            "workspace": _page(
                status,
                "The workspace does not answer",
                "This workspace does not answer",
                "Its app is starting, stopped or busy. Its files are safe.",
                "If this persists, see the workspace’s page in the portal.",
            ),
        }
        problems = {
            "portal": _problem(
                status,
                "unavailable",
                "Temporarily unavailable",
                "The portal is starting or being restarted. Try again in a few seconds.",
            ),
            "workspace": _problem(
                status,
                "workspace_unavailable",
                "The workspace does not answer",
                "Its app is starting, stopped or busy. Try again, or see its page in the portal.",
            ),
        }
        retry = {"Retry-After": str(RETRY_S)}
        for door, page in pages.items():
            match = _error(door, str(status))
            html = {**match, "header_regexp": {"Accept": {"pattern": "(?i)text/html"}}}
            result += [
                {"match": [html], "handle": [_answer(status, _HTML, page, **retry)], "terminal": True},
                {
                    "match": [match],
                    "handle": [_answer(status, _JSON, problems[door], **retry)],
                    "terminal": True,
                },
            ]
    return result


def _error(door: str, status: str) -> dict[str, Any]:
    return {
        "vars": {"door": [door]},
        "vars_regexp": {"{http.error.status_code}": {"pattern": f"^{status}$"}},
    }
