"""Django's tools find all user texts without warnings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("xgettext", "msguniq", "msgmerge")

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS),
    reason="makemessages needs gettext's tools: apt-get install gettext",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], str]:
    """`makemessages` over a copy of the sources, as it writes next to the templates."""
    copy = tmp_path_factory.mktemp("messages")
    for folder in ("portal", "templates"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    settings = f"from portal.settings import *\n\nLOCALE_PATHS = [{str(copy / 'locale')!r}]\n"
    (copy / "with_locale.py").write_text(settings)
    arguments = ["--settings", "with_locale", "--pythonpath", str(copy), "-l", "de", "--no-location"]
    ran = subprocess.run(
        [sys.executable, "-m", "django", "makemessages", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = copy / "locale" / "de" / "LC_MESSAGES" / "django.po"
    return ran, found.read_text() if found.exists() else ""


@pytest.mark.thorough("runs gettext over all sources")
def test_makemessages_runs_clean(made: tuple[subprocess.CompletedProcess[str], str]) -> None:
    ran, _ = made
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "warning" not in ran.stdout.lower()


@pytest.mark.parametrize(
    "text",
    [
        'msgid "Workspace not found, or you do not have access to it."',
        'msgid "%(username)s still has %(count)d workspace charged to %(team)s."',
        'msgid_plural "%(username)s still has %(count)d workspaces charged to %(team)s."',
        'msgid "Wrong name or password. Passwords are case-sensitive."',
        'msgid "Program exited"',
        'msgid "Slug already in use. Choose another."',
        'msgid "%(name)s will be moved and stops at %(time)s"',
        'msgid "an operator cancelled the move"',
    ],
)
def test_user_texts_are_in_the_catalog(made: tuple[subprocess.CompletedProcess[str], str], text: str) -> None:
    assert text in made[1].replace('"\n"', "").replace('msgid ""', 'msgid "').replace('""', '"')
