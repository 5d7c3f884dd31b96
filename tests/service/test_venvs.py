from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.service import notebook, venvs
from provisioning.service.console import Problem

LOCK = "alpha==1.0 \\\n    --hash=sha256:aa\nbeta==2.0 ; sys_platform == 'win32' \\\n    --hash=sha256:bb\n"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(LOCK)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fake Python: `-m venv` makes an environment with scripted pip and uv."""
    path = tmp_path / "python"
    path.write_text(
        f"""#!{sys.executable} -IS
import os, pathlib, shutil, sys
if sys.argv[1:5] == ["-m", "pip", "config", "list"]:
    print(os.environ.get("PIP_CONFIG", ""))
    sys.exit(0)
if sys.argv[0].endswith("/uv"):
    print("uv", *sys.argv[1:])
    read = ("SSL_CERT_FILE", "UV_DEFAULT_INDEX", "UV_FIND_LINKS")
    print({{name: value for name, value in os.environ.items() if name in read}})
    sys.exit(int(os.environ.get("UV_EXITS", "1")))
if sys.argv[1:3] == ["-m", "venv"]:
    target = pathlib.Path(sys.argv[-1])
    shutil.rmtree(target, ignore_errors=True)
    (target / "bin").mkdir(parents=True)
    for name in ("python", "uv"):
        shutil.copy(__file__, target / "bin" / name)
    sys.exit(0)
print("Collecting alpha==1.0 (from -r some.lock)")
print("Installing collected packages: alpha")
print(os.environ.get("PIP_SAYS", ""))
sys.exit(int(os.environ.get("PIP_EXITS", "0")))
"""
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def build(tmp_path: Path, lock: Path, python: Path, **environ: str) -> list[str]:
    told: list[str] = []
    venvs.build(
        tmp_path / "env",
        lock,
        log=tmp_path / "log.txt",
        python=str(python),
        environ={"PATH": os.environ["PATH"], **environ},
        progress=told.append,
    )
    return told


def test_uv_uses_the_index_of_pip(tmp_path: Path, lock: Path, python: Path) -> None:
    config = (
        "global.index-url='https://mirror.example/simple'\n:env:.index-url='https://near.example/simple'\n"
        "global.find-links='/opt/a /opt/b'\nglobal.cert='/etc/ours.pem'\nglobal.timeout='9'"
    )
    progress = build(tmp_path, lock, python, UV_EXITS="0", PIP_CONFIG=config)
    assert progress == ["creating the environment", "installing 1 packages"]
    assert venvs.is_complete(tmp_path / "env", lock)
    command, variables = (tmp_path / "log.txt").read_text().splitlines()
    assert "--require-hashes" in command and "example" not in command, "an address may have a password"
    assert ast.literal_eval(variables) == {
        "SSL_CERT_FILE": "/etc/ours.pem",
        "UV_DEFAULT_INDEX": "https://near.example/simple",
        "UV_FIND_LINKS": "/opt/a,/opt/b",
    }


def test_uv_from_the_lock_is_installed_first_with_hashes(tmp_path: Path, lock: Path, python: Path) -> None:
    lock.write_text(f"{LOCK}uv==1.0 \\\n    --hash=sha256:cc \\\n    --hash=sha256:dd\nzeta==1.0\n")
    progress = build(tmp_path, lock, python, UV_EXITS="0")
    assert progress == ["creating the environment", "downloading uv", "installing 3 packages"]
    assert (tmp_path / "env" / "uv.txt").read_text() == (
        "uv==1.0 \\\n    --hash=sha256:cc \\\n    --hash=sha256:dd\n"
    )


@pytest.mark.parametrize(
    "environ", [{"UV_EXITS": "2"}, {"UV_EXITS": "0", "PIP_CONFIG": "global.trusted-host='x'"}]
)
def test_pip_is_the_fallback_for_uv(
    tmp_path: Path, lock: Path, python: Path, environ: dict[str, str]
) -> None:
    progress = build(tmp_path, lock, python, **environ)
    assert progress[-2:] == ["downloading package 1 of 1", "installing 1 packages"]
    assert venvs.is_complete(tmp_path / "env", lock)


def test_environment_with_another_lock_or_place_is_incomplete(
    tmp_path: Path, lock: Path, python: Path
) -> None:
    build(tmp_path, lock, python)
    (tmp_path / "env").rename(tmp_path / "moved")
    assert not venvs.is_complete(tmp_path / "moved", lock)
    (tmp_path / "moved").rename(tmp_path / "env")
    lock.write_text(LOCK.replace("1.0", "1.1"))
    assert not venvs.is_complete(tmp_path / "env", lock)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ERROR: Could not find a version that satisfies the requirement alpha", "package index"),
        ("WARNING: Retrying: [Errno -3] Temporary failure in name resolution", "package index"),
        ("ERROR: Could not install packages due to an OSError: No space left on device", "disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "does not match"),
        ("ERROR: something else", "could not be installed: ERROR: something else"),
        ("", "could not be installed: Installing collected packages"),
    ],
)
def test_failed_build_is_explained_and_never_complete(
    tmp_path: Path, lock: Path, python: Path, said: str, words: str
) -> None:
    build(tmp_path, lock, python)
    with pytest.raises(Problem, match=words):
        build(tmp_path, lock, python, PIP_SAYS=said, PIP_EXITS="1")
    assert not venvs.is_complete(tmp_path / "env", lock)
    build(tmp_path, lock, python)
    assert venvs.is_complete(tmp_path / "env", lock)


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_missing_venv_module_names_the_package(
    tmp_path: Path, lock: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = venvs.importlib.util.find_spec
    monkeypatch.setattr(
        venvs.importlib.util, "find_spec", lambda name: None if name == module else real(name)
    )
    with pytest.raises(Problem, match=rf"no “{module}” module.*apt install python3\.\d+-venv"):
        venvs.build(tmp_path / "env", lock, log=tmp_path / "log.txt")


def ensure(tmp_path: Path, environ: dict[str, str]) -> str:
    return notebook.ensure(tmp_path / "environments", tmp_path / "logs", environ, lambda _: None)


def test_notebook_environment_is_replaced_as_a_whole(
    tmp_path: Path, lock: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "LOCK", lock)
    real = venvs.build
    monkeypatch.setattr(
        notebook.venvs, "build", lambda *args, **options: real(*args, **options, python=str(python))
    )
    environ = {"PATH": os.environ["PATH"]}
    link = tmp_path / "environments" / "notebook"

    assert "installed" in notebook.ensure(
        tmp_path / "environments", tmp_path / "logs", environ, lambda _: None
    )
    first = link.resolve()
    assert "kept" in ensure(tmp_path, environ)

    lock.write_text(LOCK.replace("1.0", "1.1"))
    with pytest.raises(Problem):
        notebook.ensure(
            tmp_path / "environments", tmp_path / "logs", {**environ, "PIP_EXITS": "1"}, lambda _: None
        )
    assert link.resolve() == first and first.exists()

    assert "installed" in notebook.ensure(
        tmp_path / "environments", tmp_path / "logs", environ, lambda _: None
    )
    assert link.resolve() != first
    assert not first.exists()  # not used by a process


def test_environment_in_use_is_kept(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir(parents=True)
    used = tmp_path / "environments" / "notebook-used"
    unused = tmp_path / "environments" / "notebook-unused"
    (used / "bin").mkdir(parents=True)
    unused.mkdir()
    with subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; print('up', flush=True); sys.stdin.read()",
            str(used),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        notebook.prune((tmp_path / "environments"), keep=tmp_path / "environments" / "notebook-new")
        process.communicate()
    assert used.exists() and not unused.exists()


def test_configured_environment_is_used_unchanged(tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "bin").mkdir(parents=True)
    with pytest.raises(Problem, match="has no bin/python"):
        notebook.ensure(
            tmp_path / "environments", tmp_path / "logs", {"BERTH_NOTEBOOK_ENV": str(given)}, lambda _: None
        )
    (given / "bin" / "python").touch()
    assert notebook.ensure(
        tmp_path / "environments", tmp_path / "logs", {"BERTH_NOTEBOOK_ENV": str(given)}, lambda _: None
    ) == str(given)
    assert (tmp_path / "environments" / "notebook").resolve() == given


def test_inaccessible_configured_environment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(Problem, match="which this user cannot open"):
        notebook.ensure(
            tmp_path / "environments", tmp_path / "logs", {"BERTH_NOTEBOOK_ENV": "/closed"}, lambda _: None
        )
