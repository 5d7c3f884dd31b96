"""Environment builds: content, reuse, refusals, and what remains after failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from provisioning.environment_builds import index, pythons, uv_steps
from provisioning.environment_builds.failures import BuildError, classify
from provisioning.environment_messages import BuildFailure, BuildStage, SourceKind
from provisioning.environments.content import cuda_of, digest_of
from provisioning.environments.store import STAMP, Store
from provisioning.environments.uses import in_use
from tests.provisioning.environments.package_index import PYTHON, Bench, PackageFolder, machine
from tests.suite.choice import quick_of

APP = Path(__file__).with_name("build_and_die.py")
pytestmark = [pytest.mark.engine, pytest.mark.apart]


def failed(bench: Bench, source: str, **changes: object) -> BuildError:
    with pytest.raises(BuildError) as caught:
        bench.build(source, **changes)  # type: ignore[arg-type]
    left_nothing(bench.store)
    return caught.value


def left_nothing(store: Store) -> None:
    """Assert that no environment, build folder or process is left."""
    assert not list(store.building.iterdir())
    assert [path.name for path in store.staging.iterdir()] in ([], [".uv-cache"])
    for place in store.folder.glob("env-*"):
        assert store.find(place.name.removeprefix("env-")), f"{place} is half an environment"
    assert not in_use(store.building)


def python_of(place: str, code: str) -> str:
    done = subprocess.run(
        [f"{place}/bin/python", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_built_environment_is_complete_and_lists_its_packages(
    any_bench: Bench, packages: PackageFolder
) -> None:
    packages.wheel("alpha", "2.0", needs="beta>=1")
    packages.wheel(
        "beta",
        "1.5",
        files={
            "beta/__init__.py": "x = 1\n",
            "broken.py": "def (:\n",
            "beta-1.5.dist-info/entry_points.txt": "[console_scripts]\nbeta-tool = beta:main\n",
        },
    )
    stamp = any_bench.build("alpha==2.*\n\n# of ours\n")
    assert stamp.digest == digest_of(stamp.lock, PYTHON)
    assert {(package.name, package.version) for package in stamp.packages} == {
        ("alpha", "2.0"),
        ("beta", "1.5"),
        ("pip", "1.0"),
    }
    assert {"beta-tool", "python3"} <= set(stamp.programs) and not stamp.preloadable
    assert stamp.python_version.startswith(PYTHON) and stamp.size_mib >= 1
    place = any_bench.store.folder_of(stamp.digest)
    assert python_of(str(place), "import alpha, beta; print(alpha.version, beta.x)") == "2.0 1"
    # A script contains its folder, and a module has bytecode.
    assert str(place) in (place / "bin" / "beta-tool").read_text()
    assert list(place.glob("lib/python3*/site-packages/beta/__pycache__/__init__.*.pyc"))
    assert [each.digest for each in any_bench.store.environments()] == [stamp.digest]
    stages = list(BuildStage)
    assert any_bench.stages == [stage for stage in stages if stage in any_bench.stages]
    left_nothing(any_bench.store)


@pytest.mark.thorough("two builds; `make test` removes one and builds it again")
def test_existing_environment_is_not_rebuilt(bench: Bench, packages: PackageFolder) -> None:
    first = bench.build("pip")
    born = (bench.store.folder_of(first.digest) / STAMP).stat().st_ino
    bench.stages.clear()
    again = bench.build("pip", lock=first.lock, digest=first.digest)
    assert again == first and not bench.stages
    assert bench.build("pip # the same") == first
    assert (bench.store.folder_of(first.digest) / STAMP).stat().st_ino == born


@pytest.mark.thorough("two builds, for the disk's sake")
def test_environments_share_files_of_equal_packages(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha")
    one, two = bench.build("alpha"), bench.build("alpha\npip")
    assert one == two
    packages.wheel("beta")
    other = bench.build("alpha\nbeta")
    files = [
        next(bench.store.folder_of(each.digest).glob("lib/python3*/site-packages/alpha.py"))
        for each in (one, other)
    ]
    assert files[0].samefile(files[1])


@pytest.mark.thorough("three builds; `make test` has locks without a build")
def test_lock_file_is_used_unchanged(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha", "1.0")
    lock = bench.build("alpha").lock
    packages.wheel("alpha", "1.1")
    stamp = bench.build(lock, source_kind=SourceKind.LOCK)
    assert stamp.lock == lock and ("alpha", "1.0") in {
        (package.name, package.version) for package in stamp.packages
    }
    unhashed = bench.build("alpha==1.1", source_kind=SourceKind.LOCK)
    assert "--hash=sha256:" in unhashed.lock


@pytest.mark.thorough("a build; `make test` has a wrong one")
def test_pyproject_builds_its_dependencies(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha")
    text = '[project]\nname = "x"\nversion = "1"\ndependencies = ["alpha>=1"]\n[[tool.uv.index]]\nurl = "http://x"\n'
    assert "alpha" in {
        package.name for package in bench.build(text, source_kind=SourceKind.PYPROJECT).packages
    }


LEFT = pytest.mark.thorough("more sources; `make test` has three")


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("pip\n\nnothing-like-it\n", "packages", 3),
        pytest.param("pip\npip==99\n", "packages", 2, marks=LEFT),
        pytest.param("pip\n# x\nodd===x y\n", "requirements", 3, marks=LEFT),
        ("pip\n--index-url=https://elsewhere.example\n", "requirements", 2),
        pytest.param("-r /etc/passwd\n", "requirements", 1, marks=LEFT),
        pytest.param("pip\n/etc\n", "packages", 2, marks=LEFT),
        ("[project\n", "pyproject", 1),
        pytest.param(
            '[project]\nname = "x"\ndependencies = ["nothing-like-it"]\n', "pyproject", 3, marks=LEFT
        ),
    ],
)
def test_unresolvable_requirement_is_reported_with_its_line(
    bench: Bench, packages: PackageFolder, source: str, kind: str, line: int
) -> None:
    error = failed(bench, source, source_kind=SourceKind(kind))
    missing = "nothing-like-it" in source
    code = BuildFailure.NO_SUCH_PACKAGE if missing else BuildFailure.RESOLUTION_FAILED
    assert (error.code, error.source_line) == (code, line), error.message
    assert error.failure.blame == "user" and not error.failure.retryable


@pytest.mark.thorough("several builds; `make test` reads uv's words")
def test_package_with_a_hash_other_than_in_the_lock_is_refused(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha")
    lock = bench.build("alpha").lock
    other = lock.replace(next(w for w in lock.split() if "sha256:" in w)[-8:], "00000000")
    for text in (other, "alpha==1.0\n"):
        assert failed(bench, "alpha", lock=text).code is BuildFailure.HASH_MISMATCH
    error = failed(bench, "alpha", lock=lock, digest="0" * 32)
    assert error.code is BuildFailure.HASH_MISMATCH


@pytest.mark.thorough("two builds; `make test` reads uv's words")
def test_index_without_a_listed_file_is_a_retryable_failure(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha")
    newer = bench.build("alpha").lock.replace("alpha==1.0", "alpha==9.0")
    error = failed(bench, "alpha", lock=newer)
    assert error.code is BuildFailure.INDEX_UNREACHABLE and error.failure.retryable
    assert "alpha==9.0" in error.message and "alpha==9.0" in error.log_line
    # An explicitly given value must be corrected by its author.
    error = failed(bench, newer, lock=newer, source_kind=SourceKind.LOCK)
    assert error.code is BuildFailure.RESOLUTION_FAILED and error.failure.blame == "user"


@pytest.mark.thorough("waits for a name that no server knows; `make test` reads uv's words")
def test_unreachable_index_is_a_retryable_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_NODE_PACKAGE_INDEX", "https://packages.invalid/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    error = failed(bench, "pip")
    assert error.code is BuildFailure.INDEX_UNREACHABLE and error.failure.retryable


@pytest.mark.parametrize(
    ("resolving", "causes", "log_line"),
    [
        (
            False,
            "  cause: Failed to write to the distribution cache\n  cause: error decoding response body\n"
            "  cause: error reading a body from connection\n"
            "  cause: end of file before message length reached",
            "end of file before message length reached",
        ),
        (
            False,
            "  cause: Failed to extract archive: large-1.0-py3-none-any.whl\n"
            "  cause: Failed to download distribution due to network timeout. Try more (current value: 60s).",
            "Failed to download distribution due to network timeout. Try more (current value: 60s).",
        ),
        (
            False,
            "  cause: Request failed after 3 retries in 6.4s\n"
            "  cause: HTTP status server error (500 Internal Server Error) for url (http://i/large.whl)",
            "HTTP status server error (500 Internal Server Error) for url (http://i/large.whl)",
        ),
        (
            True,
            "  cause: Because large==1.0 has an invalid package format, it cannot be used.\n"
            "\nhint: The structure of `large` (v1.0) was invalid:\n  Failed to read from zip file",
            "Failed to read from zip file",
        ),
        (
            True,
            "error: failed to read from file `/srv/index/simple/large/index.html`: Permission denied",
            "error: failed to read from file `/srv/index/simple/large/index.html`: Permission denied",
        ),
    ],
    ids=["cut off", "silent", "an error", "cut off while it resolves", "a folder that is closed"],
)
def test_index_lost_midway_is_retryable(resolving: bool, causes: str, log_line: str) -> None:
    said = f"error: Failed to download `large==1.0`\n{causes}".splitlines()
    error = classify(said, ((1, "large==1.0"),), resolving=resolving)
    assert error.code is BuildFailure.INDEX_UNREACHABLE and error.failure.retryable
    assert (error.log_line, error.source_line) == (log_line, 0)


def test_index_timeout_is_set_by_the_node() -> None:
    given = {"BERTH_NODE_PACKAGE_TIMEOUT_S": "300", "BERTH_NODE_PACKAGE_RETRIES": "often"}
    environ = index.configured_index(given).environ()
    assert (environ["UV_HTTP_TIMEOUT"], environ["UV_HTTP_RETRIES"]) == ("300", "3")


def test_unavailable_python_version_is_refused_and_not_downloaded(bench: Bench) -> None:
    error = failed(bench, "pip", python="3.99")
    assert error.code is BuildFailure.NO_PYTHON
    assert f"{PYTHON}." in error.message, "it says what there is"


def test_node_without_uv_refuses_builds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert failed(bench, "pip").code is BuildFailure.UV_MISSING


@pytest.mark.thorough("a build; the sum of a folder has quick tests")
def test_oversized_environment_is_discarded(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("large", files={"large.bin": os.urandom(4 << 20)})
    error = failed(bench, "large", disk_limit_mib=2)
    assert error.code is BuildFailure.TOO_LARGE and not bench.store.environments()


@pytest.mark.thorough("waits for two deadlines")
def test_build_stops_on_cancellation_or_timeout(bench: Bench, packages: PackageFolder) -> None:
    packages.source("endless", "import time\nSAID = ''\ndef attack():\n    time.sleep(3600)\n")
    begun = time.monotonic()
    error = failed(bench, "endless", cancelled=lambda: time.monotonic() > begun + 3)
    assert error.code is BuildFailure.CANCELLED
    assert failed(bench, "endless", deadline_s=4).code is BuildFailure.TIMED_OUT


@pytest.mark.thorough("two builds at once; the store's lock has quick tests")
def test_two_builds_at_once_build_once(bench: Bench, packages: PackageFolder, tmp_path: Path) -> None:
    packages.source("slow", "import time\nSAID = ''\ndef attack():\n    time.sleep(1)\n")
    second = Bench(Store(bench.store.folder), machine(tmp_path / "berth"))
    found: list[object] = []
    threads = [threading.Thread(target=lambda b=b: found.append(b.build("slow"))) for b in (bench, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 2 and found[0] == found[1]
    installed = [b for b in (bench, second) if BuildStage.CHECKING in b.stages]
    assert len(installed) == 1


@pytest.mark.slow("two builds")
@pytest.mark.parametrize(
    "moment",
    quick_of(
        ("resolving", "downloading", "compiling", "checking", "stamped", "named"),
        ("compiling",),
        "a kill at each moment; `make test` has one",
    ),
)
def test_killed_build_leaves_no_incomplete_environment(
    bench: Bench, packages: PackageFolder, moment: str
) -> None:
    packages.wheel("alpha")
    done = subprocess.run(
        [sys.executable, str(APP), str(bench.store.folder.parent), moment, "alpha"],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
    held = bench.store.environments()
    assert len(held) == (moment == "named"), "an environment is there whole or not at all"
    until = time.monotonic() + 10
    while in_use(bench.store.folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not in_use(bench.store.folder), "what it had started ends with it"
    with bench.store.build_lock() as mine:
        assert mine
        bench.store.sweep()
    left_nothing(bench.store)
    stamp = bench.build("alpha")
    assert [each.digest for each in bench.store.environments()] == [stamp.digest]


@pytest.mark.thorough("two builds; `make test` has the reserve")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_full_disk_fails_the_build(packages: PackageFolder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)], check=True)
    try:
        bench = Bench(Store(disk / "environments"), machine(disk))
        packages.wheel("large", files={"large.bin": os.urandom(16 << 20)})
        assert failed(bench, "large").code is BuildFailure.DISK_FULL
        assert bench.build("pip").packages
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_disk_reserve_for_workspaces_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_DISK_RESERVE_MIB", str(1 << 40))
    assert failed(bench, "pip").code is BuildFailure.DISK_FULL


def test_multi_user_node_without_sandbox_refuses_builds(
    packages: PackageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_MULTIUSER", "1")
    bench = Bench(Store(tmp_path / "environments"), machine(tmp_path, sandbox=False))
    assert "sandbox" in failed(bench, "pip").message


@pytest.mark.slow("two builds")
def test_unused_environment_is_removed(bench: Bench, packages: PackageFolder) -> None:
    stamp = bench.build("pip")
    place = bench.store.folder_of(stamp.digest)
    with subprocess.Popen([f"{place}/bin/python", "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not bench.store.remove(stamp.digest) and bench.store.find(stamp.digest)
        process.kill()
    with bench.store.using(stamp.digest) as found:
        assert found == stamp and not bench.store.remove(stamp.digest)
    assert bench.store.remove(stamp.digest) and bench.store.remove(stamp.digest)
    assert not place.exists() and not bench.store.environments()
    with bench.store.using(stamp.digest) as found:
        assert found is None
    with bench.store.build_lock():
        bench.store.prune_cache()
        assert bench.store.cache.exists()
        bench.store.prune_cache(keep_mib=-1)
    assert not bench.store.cache.exists()
    assert bench.build("pip") == stamp


def test_incomplete_files_are_swept(bench: Bench) -> None:
    store = bench.store
    stamp = bench.build("pip")
    half = store.folder_of("0" * 32)
    half.mkdir()
    (half / "denied").mkdir(mode=0o000)
    moved = store.folder_of("1" * 32)
    moved.mkdir()
    (moved / STAMP).write_text((store.folder_of(stamp.digest) / STAMP).read_text())
    (store.building / "left").mkdir()
    with store.build_lock():
        store.sweep()
    left_nothing(store)
    assert [each.digest for each in store.environments()] == [stamp.digest]


def test_python_of_the_node_is_preferred(tmp_path: Path) -> None:
    found = pythons.find(PYTHON, uv=uv_steps.find_uv(), downloads=tmp_path)
    assert found.minor == PYTHON and Path(found.executable).exists()


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("nvidia-cuda-runtime-cu12==12.4.127", "12.4"),
        ("nvidia-cuda-runtime==13.0.96", "13.0"),
        ("torch==2.6.0+cu124", "12.4"),
        ("nvidia-cudnn-cu12==9.1", "12"),
        ("numpy==2", ""),
    ],
)
def test_cuda_version_of_a_lock(line: str, cuda: str) -> None:
    assert cuda_of(f"six==1\n{line} \\\n  --hash=sha256:aa\n") == cuda
