"""Sends messages with the apprise library, in a sandboxed process.

URLs are user input, and apprise supports some hundred services, some of which run programs, read files or
connect to arbitrary hosts. This process therefore installs a Python audit hook (PEP 578): it allows
connections to checked addresses only, no subprocesses, and no files except Python's own. The hook cannot be
removed and also covers redirects, templates and further name lookups inside the libraries. The process has
neither the portal's environment nor its database, and is killed at its deadline.

Reads one JSON object from standard input and writes one JSON line per job. Does not import Django.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import resource
import socket
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

# Import everything before the process is confined: afterwards it cannot read other files.
import apprise
import certifi
import requests

from portal.common.outgoing.addresses import AddressPolicy, AddressRefused

THREADS = 8
MAX_ANSWER = 300
JOBS_S = 10.0
"""Time limit for all jobs together, in seconds. Later responses are ignored."""
REFUSED_PARAMETERS = frozenset({"template", "verify", "cto", "rto", "retry", "wait"})
"""URL parameters that users may not set: files to read, unverified TLS, timeouts."""
REFUSED_EVENTS = (
    "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "pty.",
    "ctypes.", "socket.bind", "socket.sendto", "socket.sendmsg", "os.remove", "os.rename", "os.mkdir",
    "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "shutil.", "webbrowser.", "ftplib.",
    "smtplib.", "telnetlib.", "poplib.", "imaplib.", "nntplib.",
)  # fmt: skip
ADDRESS_SPACE = 1 << 30


class ForbiddenOperation(Exception):
    """The sandbox forbids the operation."""


class _ThreadState(threading.local):
    """The thread's last response, and whether an address was refused."""

    status: int | None = None
    answer: str = ""
    refused: bool = False
    error: str = ""


_thread_state = _ThreadState()


def confine_process(policy: AddressPolicy) -> None:
    """Restrict this process permanently.

    The process can connect only to addresses that `policy` permits. It can start no programs, and open no
    files except Python's own, certificates and time zones.
    """
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {Path(sysconfig.get_path(name)).resolve() for name in names}
    roots |= {Path("/etc/ssl"), Path("/usr/share/zoneinfo"), Path(__file__).resolve().parents[2]}
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        roots.add(Path(bundle).resolve())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            _check_connect(policy, arguments[0], arguments[1])
        elif event == "open":
            _check_open(roots, arguments[0], arguments[2])
        elif event.startswith(REFUSED_EVENTS):
            raise ForbiddenOperation(event)

    sys.addaudithook(hook)


def _check_connect(policy: AddressPolicy, opened: socket.socket, target: Any) -> None:
    if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.type & 0xF != socket.SOCK_STREAM:
        _thread_state.refused = True
        raise AddressRefusedError
    try:
        # Names are rejected: the system would resolve them after this check, possibly to another address.
        policy.check(ipaddress.ip_address(str(target[0]).partition("%")[0]))
    except (AddressRefused, ValueError):
        _thread_state.refused = True
        raise AddressRefusedError from None


class AddressRefusedError(OSError):
    """A subclass of `OSError`, which libraries expect for failed connections."""


def _check_open(roots: set[Path], path: Any, flags: Any) -> None:
    if isinstance(path, int):
        return
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        raise ForbiddenOperation("open")
    target = Path(os.path.realpath(os.fsdecode(path)))
    if str(target) != os.devnull and not any(target.is_relative_to(root) for root in roots):
        raise ForbiddenOperation("open")


def _remember_answers() -> None:
    """Record responses of services, because apprise only reports success or failure."""
    send = requests.Session.send

    def remembering(self: Any, request: Any, **kwargs: Any) -> Any:
        try:
            response = send(self, request, **kwargs)
        except requests.exceptions.SSLError:
            _thread_state.error = "tls"
            raise
        except requests.exceptions.Timeout:
            _thread_state.error = "timeout"
            raise
        except Exception:
            _thread_state.error = "connection"
            raise
        _thread_state.status, _thread_state.answer = response.status_code, response.text[: MAX_ANSWER * 4]
        return response

    requests.Session.send = remembering  # type: ignore[method-assign]


def problem_of(url: str, schemas: frozenset[str]) -> str:
    """Return the error code of an unacceptable URL, before apprise parses it, or ""."""
    if not url.isprintable() or any(char.isspace() for char in url):
        return "no_url"
    scheme = url.partition("://")[0].lower()
    # apprise may find a service behind an https URL; the service is checked after parsing.
    if "://" not in url or scheme not in schemas | {"https"}:
        return "scheme"
    try:
        parameters = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    except ValueError:
        return "no_url"
    names = {name.strip().lower().lstrip("+-:") for name, _ in parameters}
    return "parameter" if names & REFUSED_PARAMETERS else ""


def parse_service(url: str, schemas: frozenset[str]) -> tuple[Any, str]:
    """Return the apprise service of a URL, or None with an error code."""
    if problem := problem_of(url, schemas):
        return None, problem
    asset = apprise.AppriseAsset(async_mode=False, secure_logging=True)
    try:
        plugin = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    except Exception:
        return None, "no_url"
    if plugin is None:
        return None, "no_url"
    plugin_schemas: set[str] = set()
    for protocol in (plugin.protocol, plugin.secure_protocol):
        plugin_schemas |= {protocol} if isinstance(protocol, str) else set(protocol or ())
    scheme = url.partition("://")[0].lower()
    if not plugin_schemas & schemas or (scheme != "https" and scheme not in plugin_schemas):
        return None, "scheme"
    return plugin, ""


def _send_job(job: dict[str, Any], service: Any) -> dict[str, Any]:
    for name in ("status", "answer", "refused", "error"):
        _thread_state.__dict__.pop(name, None)
    try:
        good = bool(service.notify(body=job["body"], title=job["title"]))
    except ForbiddenOperation:
        return {"id": job["id"], "ok": False, "error": "refused_act", "status": None, "answer": ""}
    except Exception:
        good = False
    error = "" if good else "refused_address" if _thread_state.refused else _thread_state.error or "declined"
    if _thread_state.status is not None and not good and error == "declined":
        error = ""
    answer = redact_secrets(_thread_state.answer, job["url"])[:MAX_ANSWER]
    return {"id": job["id"], "ok": good, "error": error, "status": _thread_state.status, "answer": answer}


def redact_secrets(text: str, url: str) -> str:
    """Return the text without parts of the URL, in case the service echoes them."""
    parts = {part for part in re.split(r"[/?&=@:+,#]+", unquote(url)) if len(part) >= 6}
    parts |= {part for part in re.split(r"[/?&=@:+,#]+", url) if len(part) >= 6}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "…")
    return text


def main() -> None:
    """Read the jobs, send or check them, and write their outcomes."""
    task = json.load(sys.stdin)
    schemas = frozenset(task["schemas"])
    confine_process(AddressPolicy.parse(task["allowed"]))
    logging.disable(logging.CRITICAL)
    certifi.where()
    _remember_answers()
    lock = threading.Lock()

    def say(result: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()

    services = []
    for job in task["jobs"]:
        try:
            service, problem = parse_service(job["url"], schemas)
        except ForbiddenOperation:
            service, problem = None, "refused_act"
        if service is None or task["check"]:
            name = str(service.service_name) if service is not None else ""
            say({"id": job["id"], "ok": service is not None, "error": problem, "service": name})
        else:
            services.append((job, service))

    def deliver(job: dict[str, Any], service: Any) -> None:
        say(_send_job(job, service))

    pool = ThreadPoolExecutor(THREADS)
    wait([pool.submit(deliver, job, service) for job, service in services], JOBS_S)
    with lock:
        # Abandon threads that still wait for a response.
        os._exit(0)


if __name__ == "__main__":
    main()
