"""`berth node join`: files on the machine, and errors."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from provisioning.host import keys, membership
from provisioning.host.folder import NodeFolder
from provisioning.service import notebook, venvs
from provisioning.service.console import Problem
from provisioning.service.environ import ROOT
from provisioning.signing import public_text
from tests.host.authority import Authority
from tests.host.conftest import Berth
from tests.host.portal_doors import Doors, problem
from tests.suite.choice import quick_of


def test_join_stores_private_keys_with_restricted_permissions(
    join: Berth, doors: Doors, folder: NodeFolder, port: str
) -> None:
    done = join()
    assert done.code == 0, done.err
    assert "node b of pool main" in done.out and f"node run --home {folder.home}" in done.out
    known = membership.load(folder)
    assert known.name == "b" and known.gateway_port == int(port)
    asked = doors.asked[-1][2]
    assert asked["signing_key"] == public_text(known.signing_key)
    assert abs(asked["clock"] - time.time()) < 60 and asked["machine_id"] == known.machine_id
    sent = json.dumps(asked)
    assert known.signing_key not in sent and "PRIVATE" not in sent
    for path in (folder.home / "node").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((folder.home / "node").stat().st_mode) == 0o700
    assert {path.name for path in (folder.home / "node").iterdir()} == {
        "node.json", "node.key", "node.pem", "authority.pem", "signing.key", "control.pub",
    }  # fmt: skip


def test_join_builds_the_notebook_environment(
    join: Berth, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the packaged lock, in the node's folder; nothing is downloaded here."""
    built: list[tuple[Path, Path]] = []

    def build(target: Path, lock: Path, **_: object) -> None:
        target.mkdir()
        built.append((target, lock))

    monkeypatch.setattr(venvs, "build", build)
    monkeypatch.delenv("BERTH_SKIP_NOTEBOOK")
    done = join()
    assert done.code == 0, done.err
    [(made, lock)] = built
    assert lock == notebook.LOCK and "packages installed" in done.out
    assert (folder.environments / notebook.NAME).readlink() == made and made.parent == folder.environments


@pytest.mark.parametrize("error", [Problem("No index answers.", "Try again."), OSError(28, "No space left")])
def test_join_succeeds_if_the_notebook_environment_fails(
    join: Berth, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(venvs, "build", fails)
    monkeypatch.delenv("BERTH_SKIP_NOTEBOOK")
    done = join()
    assert done.code == 0 and membership.load(folder).name == "b"
    assert f"Later: berth node environment --home {folder.home}" in done.out


def test_second_join_names_the_existing_node(join: Berth, doors: Doors) -> None:
    assert join().code == 0
    done = join()
    assert done.code == 1 and "already the node b of https://" in done.err and "berth node leave" in done.err
    assert doors.paths().count("/nodes/v1/join") == 1


def test_folder_of_a_portal_is_refused(join: Berth, folder: NodeFolder) -> None:
    (folder.home / "secrets").mkdir(parents=True)
    done = join()
    assert done.code == 1 and "folder of a portal" in done.err and "--home" in done.err


@pytest.mark.parametrize("token", ["", "berth-join.a.b", "berth-join.a.b." + "g" * 64, "x" * 300])
def test_invalid_token_is_not_sent(berth: Berth, doors: Doors, token: str) -> None:
    done = berth("join", doors.url, "--token", token)
    assert done.code == 1 and "not a join token" in done.err and doors.asked == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8007", "https://host", "https://host:8007/pools", "host:8007", "https://h:x"]
)
def test_invalid_address_is_reported(berth: Berth, doors: Doors, url: str) -> None:
    done = berth("join", url, "--token", doors.token)
    assert done.code == 1 and "is not an address that machines can join" in done.err


@pytest.mark.parametrize("name", ["GPU", "a_b", "-a", "a" * 64, "a b"])
def test_invalid_name_is_not_sent(berth: Berth, doors: Doors, name: str) -> None:
    done = berth("join", doors.url, "--token", doors.token, f"--name={name}")
    assert done.code == 1 and "is not a valid node name" in done.err and doors.asked == []


def test_another_authority_receives_no_token(join: Berth, doors: Doors, folder: NodeFolder) -> None:
    """A man in the middle shows his own authority, over valid TLS."""
    doors.shown = Authority().pem
    done = join()
    assert done.code == 1 and "it has another authority. Nothing was sent." in done.err
    assert doors.paths() == ["/nodes/v1/authority"] and not folder.state_file.exists()


def test_authority_certificate_without_its_key_is_refused(
    berth: Berth, tmp_path: Path, doors: Doors, folder: NodeFolder
) -> None:
    between = Doors(tmp_path / "between", Authority())
    try:
        between.shown = doors.authority.pem
        done = berth("join", between.url, "--token", doors.token, "--name", "b")
    finally:
        between.close()
    assert done.code == 4 and "Nothing was sent." in done.err and "certificate" in done.err
    assert between.paths() == ["/nodes/v1/authority"]


def test_another_node_cannot_stand_in_for_the_portal(
    berth: Berth, tmp_path: Path, authority: Authority, doors: Doors
) -> None:
    """Its certificate is of the right authority, with another name."""
    hostile = Doors(tmp_path / "hostile", authority, name="a.node.berth.internal")
    try:
        done = berth("join", hostile.url, "--token", doors.token, "--name", "b")
    finally:
        hostile.close()
    assert done.code == 4 and "Nothing was sent." in done.err
    assert hostile.paths() == ["/nodes/v1/authority"]


def test_unreachable_portal_is_reported(berth: Berth, doors: Doors) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = berth("join", f"https://127.0.0.1:{port}", "--token", doors.token, "--name", "b")
    assert done.code == 4
    assert (
        "does not answer" in done.err
        and "BERTH_NODES_ADDRESS" in done.err
        and "Nothing was changed" in done.err
    )


def test_port_without_tls_is_reported(berth: Berth, doors: Doors) -> None:
    code = (
        "import http.server; s = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)"
    )
    code += "; print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as plain:
        assert plain.stdout is not None
        port = plain.stdout.readline().strip()
        try:
            done = berth("join", f"https://127.0.0.1:{port}", "--token", doors.token, "--name", "b")
        finally:
            plain.kill()
    assert done.code == 4 and "does not speak the TLS" in done.err


@pytest.mark.parametrize(("ahead_s", "words"), [(300, "behind"), (-300, "ahead of")])
def test_wrong_clock_is_reported_before_the_token_is_used(
    join: Berth, doors: Doors, ahead_s: float, words: str
) -> None:
    doors.clock_ahead_s = ahead_s
    done = join()
    assert done.code == 1
    assert f"s {words} the portal's" in done.err and "timedatectl" in done.err
    assert doors.paths() == ["/nodes/v1/authority"]


CODES = [
    "join_token_unknown", "join_token_used", "join_token_expired", "node_name_taken", "node_name_invalid",
    "version_differs", "clock_off", "machine_joined_already", "one_that_comes_later",
]  # fmt: skip


@pytest.mark.parametrize(
    "code",
    quick_of(CODES, ("join_token_used", "one_that_comes_later"), "`make test` has a code and an unknown one"),
)
def test_refusal_is_reported_and_join_can_be_repeated(
    join: Berth, doors: Doors, folder: NodeFolder, code: str
) -> None:
    words = f"Because of {code}. \x1b[31mred\nlines"
    doors.answer_join = lambda _: (409, problem(code, words, "Then do that."))
    done = join("--json")
    assert done.code == 1
    error = json.loads(done.out)["error"]
    assert error == {
        "message": f"Because of {code}. [31mred lines",
        "next_action": "Then do that.",
        "code": code,
    }
    assert not folder.state_file.exists() and not folder.pending.exists()
    doors.answer_join = lambda _: None
    assert join().code == 0


def test_lost_answer_is_reported_with_its_effect(join: Berth, doors: Doors, folder: NodeFolder) -> None:
    doors.answer_join = lambda _: (0, {})
    done = join()
    assert done.code == 1
    assert "may have added this machine as b" in done.err and "Run the same command again" in done.err
    assert not folder.state_file.exists()
    doors.answer_join = lambda _: (409, problem("join_token_used", "It was used."))
    again = join()
    assert again.code == 1 and "its answer was lost" in again.err
    assert "Revoke and remove b on its pool's page, then join with a new token." in again.err


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}),
        (502, {}),
        (404, {"anything": 1}),
        (201, {"node": "b"}),
        (201, {"node": 7}),
    ],
)
def test_failing_portal_is_reported(
    join: Berth, doors: Doors, folder: NodeFolder, answer: tuple[int, dict]
) -> None:
    doors.answer_join = lambda _: answer
    done = join()
    assert done.code in {1, 4} and not folder.state_file.exists()
    assert "Traceback" not in done.err and len(done.err.splitlines()) == 2


def test_certificate_for_another_key_is_refused(join: Berth, doors: Doors, folder: NodeFolder) -> None:
    doors.answer_join = lambda _: (201, doors.granted("b", keys.make("b").csr))
    done = join()
    assert done.code == 1 and "the certificate belongs to another key" in done.err
    assert not folder.state_file.exists()


def test_port_in_use_is_reported_before_any_request(join: Berth, doors: Doors, port: str) -> None:
    with socket.create_server(("127.0.0.1", int(port))):
        done = join()
    assert done.code == 1 and doors.asked == []
    assert f"Port {port} of the node's gateway is used" in done.err and "--gateway-port" in done.err


def test_full_disk_after_the_token_was_used_is_reported(
    join: Berth, doors: Doors, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(membership, "save", full)
    done = join()
    assert done.code == 1
    assert "disk under" in done.err and "has already added this machine as b" in done.err
    assert "Revoke and remove b on its pool's page" in done.err


def test_unwritable_home_is_reported_before_any_request(
    berth: Berth, doors: Doors, tmp_path: Path, port: str
) -> None:
    (tmp_path / "file").touch()
    done = berth("join", doors.url, "--token", doors.token, "--home", str(tmp_path / "file" / "home"))
    assert done.code == 1 and "cannot be written" in done.err and doors.asked == []


def test_killed_join_can_be_repeated(join: Berth, doors: Doors, folder: NodeFolder, port: str) -> None:
    """Killed while the portal processes the request, so the token is unused."""
    came, go = threading.Event(), threading.Event()

    def think(_: object) -> tuple[int, dict]:
        came.set()
        go.wait(30)
        return 409, problem("later", "Later.")

    doors.answer_join = think
    argv = [sys.executable, "-m", "portal.cli.main", "node", "join", doors.url, "--token", doors.token]
    argv += ["--name", "b", "--gateway-port", port]
    with subprocess.Popen(
        argv, cwd=ROOT, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert came.wait(60)
        process.kill()
    go.set()
    assert not folder.state_file.exists()
    doors.answer_join = lambda _: None
    assert join().code == 0
    assert membership.load(folder).name == "b"


def test_environment_settings_are_stored_for_the_service(
    join: Berth, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_EGRESS", "none")
    monkeypatch.setenv("BERTH_SECRET_KEY", "s")
    assert join().code == 0
    assert folder.settings.read_text().splitlines()[1:] == ["BERTH_EGRESS=none"]
