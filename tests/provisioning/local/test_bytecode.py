"""Bytecode of programs in workspaces lies beside them, whoever starts them and with any umask."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.drivers.local import bytecode

LOOK = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import one
print(one.__spec__.cached, one.VALUE)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "program").mkdir()
    source = tmp_path / "program" / "one.py"
    source.write_text("VALUE = 1")
    source.chmod(0o644)
    source.parent.chmod(0o755)
    return tmp_path


def test_bytecode_is_rebuilt_only_for_changed_sources(root: Path) -> None:
    source = root / "program" / "one.py"
    cache = Path(importlib.util.cache_from_source(str(source)))
    umask = os.umask(0o077)
    try:
        bytecode.make(root)
    finally:
        os.umask(umask)
    assert (cache.stat().st_mode & 0o777, cache.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    first = cache.read_bytes(), cache.stat().st_ino
    bytecode.make(root)
    assert (cache.read_bytes(), cache.stat().st_ino) == first
    source.write_text("VALUE = 22")
    os.utime(source, (1_700_000_000, 1_700_000_000))
    bytecode.make(root)
    assert cache.read_bytes() != first[0]
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOOK, source.parent], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{cache} 22\n"


def test_bytecode_is_written_only_if_enabled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bytecode.make(root)
    assert [path.name for path in (root / "program").iterdir()] == ["one.py"]
