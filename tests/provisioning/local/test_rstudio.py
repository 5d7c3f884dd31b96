"""The template of RStudio Server: how it is launched, without RStudio Server itself.

In its place is a program of the tests that takes its options, answers on its port, and tells what it got.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from local_support import Pool, ask

from portal.catalog import initial_catalog
from provisioning.drivers.local import environment, host
from provisioning.types import AppSpec, ObservedState

CATALOG = Path(initial_catalog.__file__).with_name("initial_catalog.yaml")
TAKES_ITS_OPTIONS = """#!/usr/bin/python3
import http.server, json, os, sys, urllib.parse
options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = urllib.parse.unquote(urllib.parse.urlsplit(self.path).query)
        # Without a session it sends people to its own sign-in, which is an answer.
        self.send_response(200 if text else 302)
        self.end_headers()
        try:
            value = eval(text, {"os": os, "options": options}) if text else None
        except BaseException as error:
            value = type(error).__name__
        self.wfile.write(json.dumps(value).encode())
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer((options["www-address"], int(options["www-port"])), Handler).serve_forever()
"""


def app() -> AppSpec:
    row = yaml.safe_load(CATALOG.read_text())["templates"]["rstudio"]
    assert row["program"] == "rserver"
    return AppSpec(argv=tuple(row["argv"]), env=row["env"], ready_path=row["ready_path"], stop_timeout_s=2)


@pytest.fixture
def pool(make_pool, sandbox) -> Pool:
    if environment.resolve(Path("/nowhere")).which("rserver"):
        pytest.skip(
            "RStudio Server is on this machine: it would be started in the place of the test's program"
        )
    return make_pool()


@pytest.mark.engine
def test_rstudio_runs_as_a_single_user_server_behind_the_gateway(pool: Pool) -> None:
    program = pool.home / "homes" / "analysts" / "ada" / ".local" / "bin" / "rserver"
    program.parent.mkdir(parents=True)
    program.write_text(TAKES_ITS_OPTIONS)
    program.chmod(0o755)
    seen = pool.run(replace(pool.spec(), app=app()))
    given = ask(seen, "options")
    assert given == given | {
        "auth-none": "1",
        "server-daemonize": "0",
        "server-user": "ada",
        "server-working-dir": "/home/ada",
        "www-address": "127.0.0.1",
        "www-root-path": "/",
    }
    state = given["server-data-dir"]
    # Its sockets lie there, and the kernel limits the path length.
    assert len(state) < 60
    assert ask(seen, f"oct(os.stat({state!r}).st_mode & 0o777)") == "0o700"
    files = {given[name] for name in ("database-config-file", "secure-cookie-key-file")}
    for file in sorted(files):
        assert file.startswith(f"{state}/")
        assert ask(seen, f"oct(os.stat({file!r}).st_mode & 0o777)") == "0o600"
    database = ask(seen, f"open({given['database-config-file']!r}).read()")
    assert database == f"provider=sqlite\ndirectory={state}\n"
    assert len(ask(seen, f"open({given['secure-cookie-key-file']!r}).read()").strip()) == 36
    assert ask(seen, "os.environ['USER']") == "ada"
    assert ask(seen, "os.environ['PATH']").startswith("/usr/lib/rstudio-server/bin:")


@pytest.mark.engine
def test_start_without_rstudio_names_the_missing_program(pool: Pool) -> None:
    spec = replace(pool.spec(), app=app())
    pool.start(spec)
    seen = pool.wait(lambda: pool.driver.observe(spec.ref), ObservedState.FAILED)
    assert seen.code == "app_exited", seen
    assert "rserver" in seen.log_tail


def test_node_finds_rstudio_in_its_package_folder(monkeypatch, tmp_path):
    found = environment.resolve(tmp_path / "none")
    monkeypatch.setitem(environment.FOLDERS, "rserver", str(tmp_path))
    before = found.which("rserver")
    (tmp_path / "rserver").write_text("#!/bin/sh\n")
    (tmp_path / "rserver").chmod(0o755)
    assert found.programs()["rserver"] == (before or str(tmp_path / "rserver"))
    # No other program has a folder of that name.
    (tmp_path / "anything").write_text("#!/bin/sh\n")
    (tmp_path / "anything").chmod(0o755)
    assert found.which("anything") == ""


def test_programs_named_by_the_node_setting_are_reported(make_pool, monkeypatch):
    monkeypatch.setenv("BERTH_NODE_PROGRAMS", "sh no-such-program ../../bin/sh -x sh")
    (node,) = make_pool().driver.inventory().nodes
    assert os.access(node.programs["sh"], os.X_OK)
    assert node.programs["no-such-program"] == ""
    assert set(node.programs) == {*environment.PROGRAMS, *host.TOOLS, "sh", "no-such-program"}
