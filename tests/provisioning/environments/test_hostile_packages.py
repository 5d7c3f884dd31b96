"""Hostile packages: what their code can do during a build, and what it can leave behind."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from provisioning.drivers.local import cgroups, process_limits
from provisioning.environment_builds import cell
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure
from provisioning.environments.uses import in_use
from tests.provisioning.environments.package_index import Bench, PackageFolder

pytestmark = [pytest.mark.engine, pytest.mark.apart]

TRY = """
SAID = {{}}
def attempt(name, function):
    try:
        SAID[name] = repr(function())
    except BaseException as error:
        SAID[name] = type(error).__name__ + ": " + str(error)
def attack():
    import glob, os, socket, subprocess, urllib.request
{body}
"""


def run_in_build(bench: Bench, packages: PackageFolder, body: str) -> dict[str, str]:
    """Return what the code of a package reported after running these lines."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    packages.source("hostile", TRY.format(body=lines))
    stamp = bench.build("hostile")
    done = subprocess.run(
        [f"{bench.store.folder_of(stamp.digest)}/bin/python", "-c", "import hostile; print(hostile.said)"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = eval(done.stdout)
    return found


@pytest.mark.slow("a build")
def test_build_reads_no_user_files(bench: Bench, packages: PackageFolder, tmp_path: Path) -> None:
    home = tmp_path / "berth" / "homes" / "team" / "ada"
    home.mkdir(parents=True)
    (home / "secret").write_text("secret")
    other = bench.build("pip")
    found = run_in_build(
        bench,
        packages,
        f"""
attempt("home", lambda: open({str(home / "secret")!r}).read())
attempt("environment", lambda: os.listdir({str(bench.store.folder_of(other.digest))!r}))
attempt("shadow", lambda: open("/etc/shadow").read())
attempt("cache", lambda: glob.glob({str(bench.store.staging)!r} + "/*"))
attempt("repository", lambda: os.listdir({str(Path.cwd())!r}))
attempt("variables", lambda: sorted(k for k in os.environ if k.startswith(("BERTH", "DJANGO"))))
attempt("processes", lambda: len([p for p in os.listdir("/proc") if p.isdigit()]) < 20)
""",
    )
    for name in ("home", "environment", "shadow", "repository"):
        assert found[name].startswith(("FileNotFoundError", "PermissionError")), (name, found[name])
    assert (found["cache"], found["variables"], found["processes"]) == ("[]", "[]", "True")


def test_build_reaches_only_the_package_index(bench: Bench, packages: PackageFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run_in_build(
            bench,
            packages,
            f"""
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", {port}), 5))
attempt("metadata", lambda: socket.create_connection(("169.254.169.254", 80), 5))
attempt("outside", lambda: socket.create_connection(("192.0.2.1", 80), 5))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
attempt("proxy", lambda: urllib.request.urlopen("http://example.org/", timeout=10).read())
attempt("proxy to loopback", lambda: urllib.request.urlopen("http://127.0.0.1:{port}/", timeout=10).read())
""",
        )
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert all("error" in text.split(":")[0].lower() for text in found.values()), found
    assert "403" in found["proxy"]


@pytest.mark.thorough("two builds")
def test_build_code_runs_as_a_user_without_files_of_others(
    bench: Bench, packages: PackageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a node running as root, the build user owns no cache, environment or process."""
    numbers = bench.machine.sandbox.uids
    if numbers is None:
        pytest.skip("users of their own are root's to give")
    packages.wheel("alpha", files={"shared.py": "good = True\n"})
    bench.build("alpha")
    leak, owners, chown = tmp_path / "leak", set(), cell._chown

    def taken(folder: Path, uid: int) -> None:
        if uid == os.geteuid():  # as left by its code
            owners.update(path.lstat().st_uid for path in folder.rglob("*"))
        chown(folder, uid)

    monkeypatch.setattr(cell, "_chown", taken)
    found = run_in_build(
        bench,
        packages,
        f"""
attempt("owner", lambda: [os.stat(path).st_uid for path in (os.environ["TMPDIR"], os.environ["HOME"])])
attempt("capabilities", lambda: [l.split()[1] for l in open("/proc/self/status") if l.startswith("CapEff")])
attempt("become root", lambda: os.setuid(0))
attempt("mounts", lambda: [l.split()[3] for l in open("/proc/self/mountinfo") if "uv-cache" in l.split()[3]])
attempt("kill", lambda: os.kill({os.getpid()}, 0))
attempt("see", lambda: open("/proc/{os.getpid()}/environ").read())
attempt("leak", lambda: open({str(leak)!r}, "w").write("x"))
""",
    )
    assert owners == {numbers.builds}, found
    assert numbers.builds not in numbers.owners and numbers.builds not in numbers.spares
    assert (found["mounts"], found["capabilities"]) == ("[]", "['0000000000000000']"), found
    assert found["become root"].startswith(("PermissionError", "OSError")), found
    assert all(found[name].startswith(("ProcessLookup", "FileNotFound")) for name in ("kill", "see")), found
    assert not leak.exists()
    # The build user keeps no ownership, since a later build runs as the same user.
    for held in bench.store.environments():
        for path in (bench.store.folder_of(held.digest), *bench.store.folder_of(held.digest).rglob("*")):
            assert path.lstat().st_uid == os.geteuid(), path
    assert all(path.lstat().st_uid == os.geteuid() for path in bench.store.cache.rglob("*"))


@pytest.mark.thorough("a build; `make test` has what a package reads")
def test_build_user_reaches_no_cache_and_no_environment(
    bench: Bench, packages: PackageFolder, tmp_path: Path
) -> None:
    """The worst case: code outside its sandbox, limited only by user permissions."""
    numbers = bench.machine.sandbox.uids
    if numbers is None:
        pytest.skip("users of their own are root's to give")
    for path in (tmp_path, tmp_path / "berth", *tmp_path.parents[:-2]):
        if path.exists() and path.stat().st_uid == os.geteuid() and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o011)
    packages.wheel("alpha", files={"shared.py": "good = True\n"})
    place = bench.store.folder_of(bench.build("alpha").digest)
    (module,) = place.glob("lib/python3*/site-packages/shared.py")
    bench.store.folder.chmod(0o711)
    bench.store.staging.chmod(0o711)
    code = f"""
import os
for path in ({str(module)!r}, {str(place)!r} + "/new", {str(bench.store.cache)!r} + "/new"):
    try:
        open(path, "w").write("bad")
    except OSError:
        continue
    print(path)
"""
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", code], user=numbers.builds, group=numbers.builds,
        extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
    assert module.read_text() == "good = True\n"


@pytest.mark.thorough("three builds; `make test` has what a package reads and reaches")
def test_build_writes_only_to_its_own_folder(bench: Bench, packages: PackageFolder) -> None:
    packages.wheel("alpha", files={"shared.py": "good = True\n"})
    other = bench.build("alpha")
    place = bench.store.folder_of(other.digest)
    (module,) = place.glob("lib/python3*/site-packages/shared.py")
    packages.wheel("beta", files={"shared2.py": "good = True\n"})
    run_in_build(
        bench,
        packages,
        f"""
attempt("environment", lambda: open({str(module)!r}, "w").write("bad = True"))
attempt("usr", lambda: open("/usr/bad", "w"))
attempt("python", lambda: open(os.path.join(os.path.dirname(os.__file__), "bad.py"), "w"))
for path in glob.glob({str(bench.store.folder)!r} + "/**/*.py", recursive=True):
    attempt(path, lambda: open(path, "a").write("bad = True"))
for path in glob.glob({str(packages.folder)!r} + "/**/*", recursive=True):
    attempt(path, lambda: open(path, "a").write("bad"))
""",
    )
    assert module.read_text() == "good = True\n"
    assert not Path("/usr/bad").exists() and not (Path(os.__file__).parent / "bad.py").exists()
    assert "bad" not in (packages.folder / "simple" / "alpha" / "index.html").read_text()
    # Later builds get only the content of the index.
    later = bench.build("alpha\nbeta")
    (again,) = bench.store.folder_of(later.digest).glob("lib/python3*/site-packages/shared.py")
    assert again.read_text() == "good = True\n"


@pytest.mark.thorough("waits for the end of a fork bomb")
def test_fork_bomb_ends_with_its_build(
    bench: Bench, packages: PackageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bench.machine.host.version:
        pytest.skip("no control groups here")
    monkeypatch.setattr(process_limits, "workspace_limit", lambda _cpu_milli: 120)
    body = """
def bomb():
    while True:
        if os.fork() == 0:
            os.setsid()
attempt("bomb", bomb)
"""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    packages.source("bomb", TRY.format(body=lines))
    with contextlib.suppress(BuildError):
        bench.build("bomb", deadline_s=25)
    assert not in_use(bench.store.building)
    assert not any(path.exists() for path in cgroups.paths(bench.machine.host, "environment-build"))


def test_wheel_with_outside_paths_writes_nothing_outside(
    bench: Bench, packages: PackageFolder, tmp_path: Path
) -> None:
    packages.wheel(
        "alpha", files={"../../../../../../escaped.py": "bad\n", f"{tmp_path}/absolute.py": "bad\n"}
    )
    try:
        bench.build("alpha")
    except BuildError as error:
        assert error.code is BuildFailure.BUILD_FAILED
    assert not list(tmp_path.rglob("escaped.py")) or all(
        path.is_relative_to(bench.store.folder / f"env-{held.digest}")
        for path in tmp_path.rglob("escaped.py")
        for held in bench.store.environments()
    )
    assert not (tmp_path / "absolute.py").exists()


@pytest.mark.thorough("a build each; `make test` puts links right")
@pytest.mark.parametrize(
    "left",
    [
        "os.mkfifo(place + '/pyvenv.cfg.d')",
        "(os.unlink(place + '/pyvenv.cfg'), os.mkfifo(place + '/pyvenv.cfg'))",
        "(os.rename(place + '/bin', place + '/was'), os.symlink('/etc', place + '/bin'))",
    ],
)
def test_build_that_leaves_harmful_files_fails(bench: Bench, packages: PackageFolder, left: str) -> None:
    body = f"place = glob.glob({str(bench.store.folder)!r} + '/env-*')[0]\n    {left}"
    packages.source("leaves", TRY.format(body="    " + body))
    with pytest.raises(BuildError) as caught:
        bench.build("leaves", deadline_s=20)
    # uv blocks on a pipe without a writer, or the installed files are refused.
    assert caught.value.code in (BuildFailure.BUILD_FAILED, BuildFailure.TIMED_OUT)
    assert not bench.store.environments()


def test_links_and_file_modes_are_corrected(bench: Bench, packages: PackageFolder, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    (secret / "bin").mkdir(parents=True)
    body = f"""
place = glob.glob({str(bench.store.folder)!r} + "/env-*")[0]
open(place + "/setuid", "w").close()
os.chmod(place + "/setuid", 0o6777)
os.unlink(place + "/pyvenv.cfg")
os.symlink({str(secret / "config")!r}, place + "/pyvenv.cfg")
os.makedirs(place + "/share/jupyter/lab")
os.symlink({str(secret)!r}, place + "/share/jupyter/lab/settings")
os.symlink({str(secret)!r}, place + "/.berth-environment")
"""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    packages.source("leaves", TRY.format(body=lines))
    try:
        stamp = bench.build("leaves")
    except BuildError as error:
        assert error.code is BuildFailure.BUILD_FAILED
    else:
        place = bench.store.folder_of(stamp.digest)
        assert stat.S_IMODE((place / "setuid").stat().st_mode) == 0o755
        assert "include-system-site-packages = false" in (place / "pyvenv.cfg").read_text()
        assert not (place / "pyvenv.cfg").is_symlink()
        assert str(secret) not in stamp.bases
    assert [path.name for path in secret.iterdir()] == ["bin"]
