"""Sends messages through the library apprise, in a process of its own that can do nothing else.

The URLs are written by people, and apprise knows some hundred services, of which some run programs, read
files or speak to whatever host they are told. So it runs where an audit hook of Python judges what is done:
connections go to checked addresses only, no program is started, no file is opened but Python's own. The hook
cannot be removed, and sees what a library does below its own options: a redirect, a template, a second name.
The process has neither the portal's environment nor its database, and is killed when its time is over.

Reads one JSON object from standard input, writes a JSON line for each job. Imports no Django.
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

from portal.common.outgoing.addresses import AddressRefused, Policy

THREADS = 8
MAX_ANSWER = 300
JOBS_S = 10.0
"""All jobs together: what has not been answered by then is not waited for."""
REFUSED_PARAMETERS = frozenset({"template", "verify", "cto", "rto", "retry", "wait"})
"""What people may not set by a URL: files to read, TLS without a check, how long to wait."""
REFUSED_EVENTS = (
    "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "pty.",
    "ctypes.", "socket.bind", "socket.sendto", "socket.sendmsg", "os.remove", "os.rename", "os.mkdir",
    "os.chmod", "os.chown", "os.link", "os.symlink", "os.truncate", "shutil.", "webbrowser.", "ftplib.",
    "smtplib.", "telnetlib.", "poplib.", "imaplib.", "nntplib.",
)  # fmt: skip
ADDRESS_SPACE = 1 << 30


class Refused(Exception):
    """What the process may not do."""


class _Here(threading.local):
    """What the thread's last request was answered with, and whether an address was refused to it."""

    status: int | None = None
    answer: str = ""
    refused: bool = False
    error: str = ""


_here = _Here()


def confine(policy: Policy) -> None:
    """From here on, and for good: checked addresses, no programs, no files but Python's own."""
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
            raise Refused(event)

    sys.addaudithook(hook)


def _check_connect(policy: Policy, opened: socket.socket, target: Any) -> None:
    if opened.family not in (socket.AF_INET, socket.AF_INET6) or opened.type & 0xF != socket.SOCK_STREAM:
        _here.refused = True
        raise AddressRefusedHere
    try:
        # A name would be resolved by the system after this look, perhaps to something else.
        policy.check(ipaddress.ip_address(str(target[0]).partition("%")[0]))
    except (AddressRefused, ValueError):
        _here.refused = True
        raise AddressRefusedHere from None


class AddressRefusedHere(OSError):
    """An `OSError`, as a library expects of a connection that cannot be made."""


def _check_open(roots: set[Path], path: Any, flags: Any) -> None:
    if isinstance(path, int):
        return
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        raise Refused("open")
    wanted = Path(os.path.realpath(os.fsdecode(path)))
    if str(wanted) != os.devnull and not any(wanted.is_relative_to(root) for root in roots):
        raise Refused("open")


def _remember_answers() -> None:
    """Keep what a service has answered: apprise only says whether it worked."""
    import requests

    send = requests.Session.send

    def remembering(self: Any, request: Any, **kwargs: Any) -> Any:
        try:
            response = send(self, request, **kwargs)
        except requests.exceptions.SSLError:
            _here.error = "tls"
            raise
        except requests.exceptions.Timeout:
            _here.error = "timeout"
            raise
        except Exception:
            _here.error = "connection"
            raise
        _here.status, _here.answer = response.status_code, response.text[: MAX_ANSWER * 4]
        return response

    requests.Session.send = remembering  # type: ignore[method-assign]


def problem_of(url: str, schemas: frozenset[str]) -> str:
    """What is wrong with a URL before anything is made of it, as a code; empty where it may do."""
    if not url.isprintable() or any(char.isspace() for char in url):
        return "no_url"
    scheme = url.partition("://")[0].lower()
    # A web address may be that of a service that apprise knows; which one is seen afterwards.
    if "://" not in url or scheme not in schemas | {"https"}:
        return "scheme"
    try:
        given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    except ValueError:
        return "no_url"
    names = {name.strip().lower().lstrip("+-:") for name, _ in given}
    return "parameter" if names & REFUSED_PARAMETERS else ""


def made_of(url: str, schemas: frozenset[str]) -> tuple[Any, str]:
    """The service of a URL, or None with a code."""
    if problem := problem_of(url, schemas):
        return None, problem
    import apprise

    asset = apprise.AppriseAsset(async_mode=False, secure_logging=True)
    try:
        found = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    except Exception:
        return None, "no_url"
    if found is None:
        return None, "no_url"
    known: set[str] = set()
    for each in (found.protocol, found.secure_protocol):
        known |= {each} if isinstance(each, str) else set(each or ())
    scheme = url.partition("://")[0].lower()
    if not known & schemas or (scheme != "https" and scheme not in known):
        return None, "scheme"
    return found, ""


def _sent(job: dict[str, Any], service: Any) -> dict[str, Any]:
    for name in ("status", "answer", "refused", "error"):
        _here.__dict__.pop(name, None)
    try:
        good = bool(service.notify(body=job["body"], title=job["title"]))
    except Refused:
        return {"id": job["id"], "ok": False, "error": "refused_act", "status": None, "answer": ""}
    except Exception:
        good = False
    error = "" if good else "refused_address" if _here.refused else _here.error or "declined"
    if _here.status is not None and not good and error == "declined":
        error = ""
    answer = without_secrets(_here.answer, job["url"])[:MAX_ANSWER]
    return {"id": job["id"], "ok": good, "error": error, "status": _here.status, "answer": answer}


def without_secrets(text: str, url: str) -> str:
    """The text without the parts of the URL, should the service repeat them."""
    parts = {part for part in re.split(r"[/?&=@:+,#]+", unquote(url)) if len(part) >= 6}
    parts |= {part for part in re.split(r"[/?&=@:+,#]+", url) if len(part) >= 6}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "…")
    return text


def main() -> None:
    """Take the jobs, send or check them, and say of each what came of it."""
    task = json.load(sys.stdin)
    schemas = frozenset(task["schemas"])
    import apprise  # noqa: F401
    import certifi
    import requests  # noqa: F401

    confine(Policy.of(task["allowed"]))
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
            service, problem = made_of(job["url"], schemas)
        except Refused:
            service, problem = None, "refused_act"
        if service is None or task["check"]:
            name = str(service.service_name) if service is not None else ""
            say({"id": job["id"], "ok": service is not None, "error": problem, "service": name})
        else:
            services.append((job, service))

    def deliver(job: dict[str, Any], service: Any) -> None:
        say(_sent(job, service))

    pool = ThreadPoolExecutor(THREADS)
    wait([pool.submit(deliver, job, service) for job, service in services], JOBS_S)
    with lock:
        # Whoever is still waiting for an answer is not waited for.
        os._exit(0)


if __name__ == "__main__":
    main()
