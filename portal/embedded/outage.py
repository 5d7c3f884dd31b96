"""What people see while the web process is away: one page of our own instead of Traefik's bare words.

A server of its own, because Traefik answers with a file only through one. It keeps nothing and reads
nothing but the kind of answer that is wanted; Traefik keeps the status (502 or 504) and calls it for every
address. `python -m portal.embedded.outage` serves alone, the supervisor serves in its own loop.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os

RETRY_S = 5
READ_TIMEOUT_S = 5.0
MAX_HEAD = 65_536

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
_PAGE = f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{RETRY_S}">
<title>Berth is starting · Berth</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>Berth does not answer just now</h1>
<p>The portal is starting or being restarted. What runs goes on, and nothing is lost.</p>
<p>This page tries again by itself every {RETRY_S} seconds. If it stays, tell an operator.</p>
<p><a href="">Try again</a></p>
<p><small>502</small></p>
</main>
</body>
</html>
"""
_PROBLEM = json.dumps(
    {
        "type": "urn:berth:problem:unavailable",
        "title": "Not available just now",
        "status": 502,
        "code": "unavailable",
        "detail": "The portal is starting or being restarted. Try again in a few seconds.",
    }
)


def answer(head: str) -> bytes:
    """The whole HTTP response to a request with this head: a page for browsers, else a problem document."""
    lines = head.split("\r\n")
    accepts = next((line for line in lines if line.lower().startswith("accept:")), "")
    page = "text/html" in accepts.lower()
    body = (_PAGE if page else _PROBLEM).encode()
    style = base64.b64encode(hashlib.sha256(_CSS.encode()).digest()).decode()
    headers = (
        "HTTP/1.1 200 OK",
        f"Content-Type: {'text/html; charset=utf-8' if page else 'application/problem+json'}",
        f"Content-Length: {len(body)}",
        f"Content-Security-Policy: default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: same-origin",
        "Cache-Control: no-store",
        f"Retry-After: {RETRY_S}",
        "Connection: close",
    )
    sent = b"" if lines[0].startswith("HEAD ") else body
    return "\r\n".join((*headers, "", "")).encode() + sent


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(head.decode("latin-1")))
            await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def serve(port: int) -> asyncio.Server:
    """Serve on a port of the loopback interface until the server is closed. Raises `OSError`."""
    return await asyncio.start_server(_handle, "127.0.0.1", port, limit=MAX_HEAD)


async def _main() -> None:
    server = await serve(int(os.environ["BERTH_OUTAGE_PORT"]))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
