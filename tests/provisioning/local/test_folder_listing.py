"""Listing a folder in Jupyter Server while its files change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioning.service.environ import ROOT
from tests import instance

pytestmark = pytest.mark.engine
CONFIG = ROOT / "provisioning" / "agent" / "jupyter" / "config"
# The name is in the folder listing but missing when the file is read.
CODE = """
import asyncio, os, sys
from jupyter_server.serverapp import ServerApp
from tornado import web

root = sys.argv[1]
app = ServerApp()
app.initialize(argv=["--allow-root", "--no-browser", f"--ServerApp.root_dir={root}"], new_httpserver=False)
manager = app.contents_manager
lstat = os.lstat

def renamed_after(path, *args, **kwargs):
    found = lstat(path, *args, **kwargs)
    if str(path).endswith("/Untitled.ipynb"):
        os.rename(path, str(path).replace("Untitled", "kept"))
    return found

async def check():
    listed = await manager.get("")
    assert sorted(row["name"] for row in listed["content"]) == ["kept.ipynb", "notes.txt"], listed
    assert (await manager.get("notes.txt", type="file"))["content"] == "mine"
    for path in ("Untitled.ipynb", "nowhere"):
        try:
            await manager.get(path)
        except web.HTTPError as error:
            assert error.status_code == 404
        else:
            raise AssertionError(path)

os.lstat = renamed_after
asyncio.run(check())
"""


@pytest.mark.thorough("lists a folder for as long as it takes to meet the race")
def test_listing_succeeds_while_a_file_is_renamed(tmp_path: Path) -> None:
    python = instance.need_notebook_environment() / "bin" / "python"
    files = tmp_path / "files"
    files.mkdir()
    (files / "Untitled.ipynb").write_text("{}")
    (files / "notes.txt").write_text("mine")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JUPYTER_CONFIG_PATH": str(CONFIG)}
    done = subprocess.run([python, "-c", CODE, files], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
