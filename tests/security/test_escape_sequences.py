"""Attack: a workspace writes escape sequences into its log to control the reader's terminal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from portal.cli.terminal import harmless
from portal.workspaces.lifecycle import State
from tests.cli.conftest import as_bob as as_bob
from tests.cli.conftest import berth as berth
from tests.cli.conftest import server as server
from tests.factories import WorkspaceFactory

HARM = {
    "colours": ("\x1b[31mred\x1b[0m", "red"),
    "another title": ("\x1b]0;root@prod\x07x", "x"),
    "title by ST": ("\x1b]2;t\x1b\\x", "x"),
    "clipboard": ("\x1b]52;c;ZXZpbA==\x07x", "x"),
    "clipboard by C1": ("\x9d52;c;ZXZpbA==\x9cx", "x"),
    "link": ("\x1b]8;;http://evil.example\x07good\x1b]8;;\x07", "good"),
    "clear and rewrite": ("bad\x1b[2J\x1b[1;1Hgood", "badgood"),
    "C1 CSI": ("\x9b2Jx", "x"),
    "answerback": ("\x05x", "\\u0005x"),
    "device report": ("\x1b[6n\x1b[cx", "x"),
    "device control": ("\x1bP+q544e\x1b\\x", "x"),
    "reset": ("\x1bcx", "x"),
    "a cut sequence": ("x\x1b[", "x"),
    "a title without end": ("\x1b]0;x\ny", "0;x\ny"),
    "backspaces": ("rm -rf /\x08\x08x", "rm -rf /\\u0008\\u0008x"),
    "overwritten line": ("bad\rgood", "bad\ngood"),
    "other direction": ("\u202egnp.exe\u202c", "\\u202egnp.exe\\u202c"),
    "delete": ("a\x7fb", "a\\u007fb"),
    "NUL": ("a\x00b", "a\\u0000b"),
}
GOOD = "Zeile 1\n\tTab: ü, 日本語, 🎉\r\nnext\n"


@pytest.mark.parametrize(("text", "shown"), HARM.values(), ids=HARM)
def test_escape_sequences_are_removed_from_terminal_output(text, shown):
    assert harmless(text) == shown
    assert harmless(harmless(text)) == harmless(text)
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in harmless(text))


def test_harmless_sequences_are_kept():
    assert harmless(GOOD) == GOOD.replace("\r\n", "\n")


@pytest.mark.django_db(transaction=True)
def test_workspace_logs_contain_no_escape_sequences(
    as_bob: Any, bob: Any, team: Any, monkeypatch: Any
) -> None:
    tail = "\x1b]52;c;ZXZpbA==\x07one\x1b[2J\ntwo"
    WorkspaceFactory(owner=bob, team=team, name="mine", state=State.FAILED, status__log_tail=tail)
    # Output to a file or pipe is unchanged.
    assert as_bob("logs", "mine").out == tail + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert as_bob("logs", "mine").out == "one\ntwo\n"
    assert as_bob("logs", "mine", "--raw").out == tail + "\n"
    assert "\x1b" not in as_bob("logs", "mine", "--json").out


@pytest.mark.django_db(transaction=True)
def test_failure_reasons_contain_no_escape_sequences(
    as_bob: Any, bob: Any, team: Any, monkeypatch: Any
) -> None:
    reason = {"code": "reported", "params": {"code": "x", "text": "\x1b[2J\x1b]0;t\x07gone"}}
    WorkspaceFactory(owner=bob, team=team, name="mine", state=State.FAILED, status__reason=reason)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for arguments in (("open", "mine"), ("ls",)):
        ran = as_bob(*arguments)
        assert "\x1b" not in ran.out + ran.err
