"""What the gateway itself answers: small pages for people, problem documents for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Headers = tuple[tuple[str, str], ...]

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

SECURITY_HEADERS: Headers = (
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("vary", "Cookie, Authorization, Accept"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to say, to a person or a program. `refresh_s` 0 means that the page stays."""

    status: int
    code: str
    title: str
    detail: str
    link: str = ""
    link_text: str = ""
    refresh_s: int = 0
    headers: Headers = ()

    def answer(self, *, html: bool) -> Answer:
        """The page or the problem document."""
        kind = "text/html; charset=utf-8" if html else "application/problem+json"
        headers: list[tuple[str, str]] = [("content-type", kind), *SECURITY_HEADERS, *self.headers]
        if self.status == 503:
            headers.append(("retry-after", str(self.refresh_s or 5)))
        return Answer(self.status, tuple(headers), self._page() if html else self._problem())

    def _problem(self) -> bytes:
        document: dict[str, object] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.link:
            document["link"] = self.link
        return json.dumps(document).encode()

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


def redirect(location: str, *, status: int = 302, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A redirect to `location`, which the caller has made safe."""
    return Answer(status, (("location", location), *SECURITY_HEADERS, *headers))


@dataclass(frozen=True, slots=True)
class _State:
    code: str
    says: str
    detail: str
    refresh_s: int = 0


_STARTING = "It opens here by itself as soon as it answers."
_STATES = {
    "pending": _State("workspace_starting", "is waiting to start", _STARTING, 2),
    "provisioning": _State("workspace_starting", "is starting", _STARTING, 2),
    "running": _State("workspace_connecting", "is almost ready", _STARTING, 1),
    "stopping": _State(
        "workspace_stopping", "is stopping", "Its files are kept. Start it again from its page.", 2
    ),
    "stopped": _State("workspace_stopped", "is stopped", "Its files are kept. Start it again from its page."),
    "terminating": _State("workspace_ending", "is being removed", "Its page tells how far that is."),
    "terminated": _State("workspace_gone", "has been removed", "Start a new one from the portal."),
    "failed": _State("workspace_failed", "failed", "Its page tells why, and lets you try again."),
}
_OTHER = _State("workspace_not_running", "is not running", "Its page tells its state.")


def state_notice(name: str, state: str, page_url: str) -> Notice:
    """What to say where a workspace cannot be reached now."""
    known = _STATES.get(state, _OTHER)
    return Notice(
        503,
        known.code,
        f"{name} {known.says}",
        known.detail,
        link=page_url,
        link_text="Go to the workspace’s page",
        refresh_s=known.refresh_s,
    )


def simulated_notice(name: str, page_url: str) -> Notice:
    """What to say of a workspace in a simulated pool."""
    return Notice(
        200,
        "workspace_simulated",
        f"{name} (simulated)",
        "This is a simulated workspace: nothing runs behind it.",
        link=page_url,
        link_text="Go to the workspace’s page",
    )
