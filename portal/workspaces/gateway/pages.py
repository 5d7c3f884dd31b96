"""The gateway's own responses: small pages for people, problem documents for programs and open tabs.

An open app requests files and kernels in the background. JupyterLab and other apps show the `message` of a
JSON error, so each problem document has one that says what happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

import msgspec
from starlette.responses import RedirectResponse, Response

from portal.common.front_door import PERMISSIONS_POLICY

CSS = """\
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { margin: 0; display: grid; place-items: center; min-height: 100vh;
  background: #f6f7f9; color: #1b1f24; }
main { max-width: 34rem; margin: 1rem; padding: 2rem; background: #fff; border: 1px solid #d5d9e0;
  border-radius: .5rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.3; margin: 0 0 .75rem; }
p { margin: .75rem 0; }
a { color: #0b57b7; }
a.way { display: inline-block; min-height: 24px; padding: .5rem 1rem; border-radius: .375rem;
  background: #0b57b7; color: #fff; text-decoration: none; }
a:focus-visible { outline: 3px solid #d97706; outline-offset: 2px; }
.code { color: #57606a; font-size: .875rem; }
@media (prefers-color-scheme: dark) {
  body { background: #0f1216; color: #e6e9ee; }
  main { background: #171b21; border-color: #343b45; }
  a { color: #82b4ff; }
  a.way { background: #82b4ff; color: #0f1216; }
  .code { color: #a3acb8; }
}
"""

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": PERMISSIONS_POLICY,
    "cache-control": "no-store",
    "vary": "Cookie, Authorization, Accept",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for a person or a program. `refresh_s` reloads the page; 0 disables that.

    `message` is the text for a person with the app open in a tab. Default: title and detail.
    """

    status: int
    code: str
    title: str
    detail: str
    link: str = ""
    link_text: str = ""
    refresh_s: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = ""

    def response(self, *, html: bool) -> Response:
        """Return the page or the problem document."""
        headers = {**SECURITY_HEADERS, **self.headers}
        if self.status == 503:
            headers["retry-after"] = str(self.refresh_s or 5)
        return Response(
            self._page() if html else self._problem(),
            self.status,
            headers,
            "text/html" if html else "application/problem+json",
        )

    def _problem(self) -> bytes:
        document: dict[str, object] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "message": self.message or f"{self.title}. {self.detail}",
        }
        if self.link:
            document["link"] = self.link
        return msgspec.json.encode(document)

    def _page(self) -> bytes:
        refresh = f'<meta http-equiv="refresh" content="{self.refresh_s}">' if self.refresh_s else ""
        link = ""
        if self.link:
            link = f'<p><a class="way" href="{escape(self.link)}">{escape(self.link_text)}</a></p>'
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>{escape(self.title)}</title><link rel="stylesheet" href="/.berth/page.css">{refresh}'
            f"</head><body><main><h1>{escape(self.title)}</h1><p>{escape(self.detail)}</p>{link}"
            f'<p class="code">{escape(self.code)}</p></main></body></html>'
        ).encode()


NOT_FOUND = Notice(404, "not_found", "Page not found", "Check the address.")
BAD_REQUEST = Notice(
    400, "bad_request", "Not a request for a workspace", "Use the address that the portal shows."
)
METHOD_NOT_ALLOWED = Notice(
    405, "method_not_allowed", "Method not allowed", "Use GET or POST.", headers={"allow": "GET, POST"}
)


def redirect(location: str, *, status: int = 302, headers: Mapping[str, str] | None = None) -> Response:
    """Return a redirect to `location`. The caller has validated it."""
    return RedirectResponse(location, status, {**SECURITY_HEADERS, **(headers or {})})


@dataclass(frozen=True, slots=True)
class _State:
    code: str
    predicate: str
    detail: str
    refresh_s: int = 0
    then: str = "Start it again at {page_url}, then save here."


_STARTING = "It opens here automatically when it is ready."
_WAIT = "Save again when it runs. Its page: {page_url}"
_COPY = "Copy them to another place before you close it."
_STATES = {
    "pending": _State("workspace_starting", "is waiting to start", _STARTING, 2, _WAIT),
    "provisioning": _State("workspace_starting", "is starting", _STARTING, 2, _WAIT),
    "running": _State("workspace_connecting", "is almost ready", _STARTING, 1, _WAIT),
    "stopping": _State(
        "workspace_stopping", "is stopping", "Its files are kept. Start it again from its page.", 2
    ),
    "stopped": _State("workspace_stopped", "is stopped", "Its files are kept. Start it again from its page."),
    "terminating": _State("workspace_ending", "is being deleted", "Its page shows the progress.", then=_COPY),
    "terminated": _State("workspace_gone", "has been deleted", "Create a new one in the portal.", then=_COPY),
    "failed": _State("workspace_failed", "failed", "Its page shows the reason. You can try again there."),
}
_OTHER = _State("workspace_not_running", "is not running", "Its page shows its state.", then=_WAIT)
_UNSAVED = "Unsaved changes are still in this tab."


def state_notice(name: str, state: str, page_url: str) -> Notice:
    """Return the notice for a workspace that is not reachable now."""
    notice = _STATES.get(state, _OTHER)
    return Notice(
        503,
        notice.code,
        f"{name} {notice.predicate}",
        notice.detail,
        link=page_url,
        link_text="Go to the workspace’s page",
        refresh_s=notice.refresh_s,
        message=f"{name} {notice.predicate}. {_UNSAVED} {notice.then.format(page_url=page_url)}",
    )


def service_worker_notice() -> Notice:
    """Reply to a request for a service worker script. An installed one would survive the next start."""
    return Notice(
        403,
        "service_worker_refused",
        "Service workers are not allowed here",
        "Ask an administrator to allow them for this template, if its app needs one.",
    )


def connections_notice() -> Notice:
    """Reply if a workspace has too many open WebSockets and event streams."""
    return Notice(
        429,
        "too_many_connections",
        "Too many connections are open",
        "Close some of the workspace's tabs or programs, then try again.",
        headers={"retry-after": "10"},
    )


def simulated_notice(name: str, page_url: str) -> Notice:
    """Show a placeholder page for simulated workspaces."""
    return Notice(
        200,
        "workspace_simulated",
        f"{name} (simulated)",
        "This is a simulated workspace: nothing runs in it.",
        link=page_url,
        link_text="Go to the workspace’s page",
    )


def foreign_origin_notice(page_url: str) -> Notice:
    """Reply to a request sent by a page of another site."""
    return Notice(
        403,
        "foreign_origin",
        "Request blocked: sent by another site",
        "Open the workspace from the portal, in its own window.",
        link=page_url,
        link_text="Go to the workspace’s page",
    )


def forbidden_notice(portal_url: str) -> Notice:
    """Return the same reply for a missing workspace and for another user's, so that they look alike."""
    return Notice(
        403,
        "forbidden",
        "You cannot open this workspace",
        "It does not exist, or it is not shared with you. Ask its owner.",
        link=portal_url,
        link_text="Go to my workspaces",
    )


def sign_in_notice(sign_in_url: str) -> Notice:
    """Reply to programs, and to requests of an open app, without a session or a valid token."""
    return Notice(
        401,
        "not_signed_in",
        "Not signed in to this workspace",
        "Open it from the portal, or send a token with the scope workspaces:connect as a bearer token.",
        link=sign_in_url,
        headers={"www-authenticate": 'Bearer realm="berth"'},
        message=f"You are signed out. {_UNSAVED} Sign in again in another tab at {sign_in_url} "
        "and then save here.",
    )


SIGNED_IN = Notice(
    200,
    "signed_in",
    "You are signed in again",
    "Go back to the tab with your work and save it. You can close this tab.",
)
"""Page after a sign-in by `sign_in_notice`. A second tab of the app could overwrite the work in the first."""


def store_unavailable_notice(portal_url: str) -> Notice:
    """Reply while Redis does not answer."""
    return _failure_notice("store_unavailable", "The portal’s message store is not reachable", portal_url)


def lookup_failed_notice(portal_url: str) -> Notice:
    """Reply after an internal error, without details."""
    return _failure_notice("lookup_failed", "The portal could not look up this workspace", portal_url)


def _failure_notice(code: str, title: str, portal_url: str) -> Notice:
    return Notice(
        503,
        code,
        title,
        "Nothing is lost. Try again in a moment. If the problem persists, contact an operator.",
        link=portal_url,
        link_text="Go to the portal",
        refresh_s=5,
    )
