"""The process that sends messages, and hostile URLs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from portal.notify.channels import sender, sending
from portal.notify.channels.sending import Job
from tests.receivers import LIMIT_S, receiver, status

SCHEMAS = ["json", "slack", "mmost", "workflows", "file", "syslog", "rsyslog", "mqtt", "mailto", "growl"]


@pytest.fixture(autouse=True)
def _all_services(settings):
    """Allow every service: the process must be safe without the site's list."""
    settings.BERTH_CHANNEL_SCHEMAS = SCHEMAS
    settings.BERTH_OUTGOING_ALLOW = ["127.0.0.0/8", "::1/128"]
    sending.LIMIT_S, before = 120.0, sending.LIMIT_S
    yield
    sending.LIMIT_S = before


def sent(*urls: str) -> list[sending.SendOutcome]:
    outcomes = sending.send([Job(number, url, "Title", "Body") for number, url in enumerate(urls)])
    return [outcomes[number] for number in range(len(urls))]


def test_outcomes_of_working_failing_silent_and_absent_receivers_are_separate():
    with receiver() as there:

        def answer(received, handler) -> None:
            if received.path.startswith("/silent"):
                there.over.wait(LIMIT_S)
            code = 403 if received.path.startswith("/bad") else 200
            status(code, b"who is token-7f3a9c?")(received, handler)

        there.answer = answer
        at = there.url.removeprefix("http://")
        good, bad, silent, absent = sent(
            f"json://{at}/good", f"json://{at}/bad/token-7f3a9c", f"json://{at}/silent", "json://127.0.0.1:1/"
        )
        assert b"Body" in there.requests[0].body
    assert (good.ok, good.status) == (True, 200)
    # The service's response is shown, without secrets of the URL.
    assert (bad.ok, bad.status, bad.answer) == (False, 403, "who is …?")
    assert (silent.ok, silent.error) == (False, "timeout")
    assert (absent.ok, absent.error) == (False, "connection")


def test_internal_addresses_are_refused_in_every_notation(settings):
    settings.BERTH_OUTGOING_ALLOW = []
    with receiver() as there:
        port = there.port
        outcomes = sent(
            *(f"json://{host}:{port}/" for host in ("127.0.0.1", "localhost", "[::1]", "2130706433")),
            f"json://[::ffff:127.0.0.1]:{port}/",
            f"mmost://localhost:{port}/0123456789abcdef0123",
        )
        assert there.requests == []
    assert [outcome.ok for outcome in outcomes] == [False] * 6


def test_redirect_to_an_internal_address_is_refused(settings):
    """The receiver is allowed and the target is not."""
    settings.BERTH_OUTGOING_ALLOW = ["127.0.0.1/32"]
    with receiver() as there:
        there.answer = status(302, Location=f"http://127.0.0.2:{there.port}/admin")
        (outcome,) = sent(f"json://127.0.0.1:{there.port}/")
        assert [request.path for request in there.requests] == ["/"]
    assert (outcome.ok, outcome.error) == (False, "refused_address")


def test_template_parameter_cannot_read_secret_files(tmp_path):
    """The process opens no file even if the parameter check is bypassed."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"text": "very secret"}')
    url = f"workflows://127.0.0.1:1/abcdefgh/abcdefgh?template={secret}"
    assert sender.problem_of(url, frozenset(SCHEMAS)) == "parameter"
    assert sender.problem_of(url.replace("template", "%74emplate"), frozenset(SCHEMAS)) == "parameter"
    assert sender.problem_of(url.replace("template", "+Template"), frozenset(SCHEMAS)) == "parameter"
    assert sender.problem_of("json://h/?verify=no", frozenset(SCHEMAS)) == "parameter"


CONFINED = """
import os, socket, subprocess, sys, threading
from portal.notify.channels import sender
from portal.common.outgoing.addresses import AddressPolicy
sender.confine_process(AddressPolicy.parse(["127.0.0.1/32"]))
def attempt(name, act):
    try:
        act()
    except Exception as error:
        print(name, type(error).__name__)
    else:
        print(name, "done")
attempt("read", lambda: open("{secret}").read())
attempt("read_os", lambda: os.open("{secret}", os.O_RDONLY))
attempt("read_passwd", lambda: open("/etc/passwd").read())
attempt("write", lambda: open("{secret}.new", "w"))
attempt("remove", lambda: os.remove("{secret}"))
attempt("run", lambda: subprocess.run(["true"]))
attempt("system", lambda: os.system("true"))
attempt("fork", lambda: os.fork())
attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect("/run/x"))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9)))
attempt("sendto", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
attempt("listen", lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt("name", lambda: socket.socket().connect(("localhost", 9)))
attempt("internal", lambda: socket.socket().connect(("127.0.0.2", 9)))
attempt("connect_ex", lambda: socket.socket().connect_ex(("10.0.0.1", 9)))
thread = threading.Thread(target=attempt, args=("thread", lambda: socket.socket().connect(("127.0.0.2", 9))))
thread.start(); thread.join()
attempt("allowed", lambda: socket.socket().connect(("127.0.0.1", 1)))
"""


def test_sandbox_limits_apply_below_all_libraries(tmp_path):
    from django.conf import settings

    secret = tmp_path / "secret"
    secret.write_text("very secret")
    ran = subprocess.run(
        [sys.executable, "-s", "-c", CONFINED.replace("{secret}", str(secret))],
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = dict(line.split() for line in ran.stdout.splitlines())
    assert said.pop("allowed") == "ConnectionRefusedError"  # tried: nothing listens
    address = {"unix", "udp", "name", "internal", "connect_ex", "thread"}
    assert {name for name, error in said.items() if error == "AddressRefusedError"} == address
    assert {name for name, error in said.items() if error == "ForbiddenOperation"} == set(said) - address
    assert secret.exists()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "syslog://", "rsyslog://127.0.0.1", "dbus://", "windows://", "macosx://", "gnome://",
        "exec://true", "mailto://a:b@127.0.0.1", "config:///etc/passwd", "apprise://127.0.0.1/x", "json://127.0.0.1",
        "https://127.0.0.1/x", "http://hooks.slack.com/services/T/B/X", "", "slack", "slack://", "slack:// x",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ file:///x",
    ],
)  # fmt: skip
def test_unsafe_services_are_disabled_by_default(settings, url):
    from portal import settings as defaults

    settings.BERTH_CHANNEL_SCHEMAS = defaults.BERTH_CHANNEL_SCHEMAS
    assert sender.parse_service(url, frozenset(settings.BERTH_CHANNEL_SCHEMAS))[0] is None


def test_url_inspection_names_the_service_without_connecting():
    with receiver() as there:
        found = sending.inspect_url(
            "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
        )
        assert (found.ok, found.service) == (True, "Slack")
        assert sending.inspect_url(f"json://127.0.0.1:{there.port}/").ok
        assert there.requests == []


def test_killed_sender_counts_as_timeout(monkeypatch):
    monkeypatch.setattr(sending, "LIMIT_S", 0.01)
    (outcome,) = sent("json://127.0.0.1:1/")
    assert (outcome.ok, outcome.error) == (False, "timeout")
