"""An authority known only to the system is trusted by package installers in a workspace."""

from __future__ import annotations

import functools
import http.server
import importlib.metadata
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_support import Pool, ask

from provisioning.drivers.local import isolation, packages
from provisioning.drivers.local.environment import uv_program
from tests.certificates import Authority
from tests.provisioning.environments.package_index import PackageFolder
from tests.suite.choice import sample

pytestmark = [pytest.mark.apart, pytest.mark.engine, pytest.mark.usefixtures("sandbox")]
NAMES = ("UV_SYSTEM_CERTS", "PIP_CERT")


class Index:
    """A package index with the wheel `one` over HTTPS; the file `authority` has its authority."""

    def __init__(self, folder: Path) -> None:
        packages = PackageFolder(folder / "index")
        packages.wheel("one")
        issued = Authority(folder / "authority").issue("index", "localhost")
        self.authority = issued.authority
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate, issued.key)
        handler = functools.partial(Quiet, directory=str(packages.folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://localhost:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    found = Index(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


def command(program: str, url: str, target: Path) -> list[str]:
    if program == "uv":
        options = ["--python", sys.executable, "--no-cache", "--target", str(target)]
        return [uv_program(), "pip", "install", *options, "--default-index", url, "one"]
    options = ["--no-cache-dir", "--retries", "0", "--target", str(target)]
    return [sys.executable, "-m", "pip", "install", *options, "--index-url", url, "one"]


def pip_believes(bundle: str) -> bool:
    """Whether pip uses system authorities by default: from 24.2 on, and always on Debian."""
    version = tuple(map(int, importlib.metadata.version("pip").split(".")[:2]))
    asked = [sys.executable, "-c", "from pip._vendor import certifi; print(certifi.where())"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    return version >= (24, 2) or Path(own).resolve() == Path(bundle).resolve()


@pytest.mark.parametrize("program", sample(["uv", "pip"], 2, "both read the same variables"))
def test_system_authority_is_trusted_in_a_workspace(
    make_pool: Callable[..., Pool], index: Index, tmp_path: Path, program: str
) -> None:
    bundle = next((path for path in packages.CERTIFICATES if Path(path).is_file()), None)
    if bundle is None:
        pytest.skip("this machine's system has no authorities of its own")
    pool = make_pool()
    seen = pool.run(pool.spec())
    given = ask(seen, f"{{name: os.environ[name] for name in {NAMES} if name in os.environ}}")
    # A system that knows the authority, in its usual file.
    bubblewrap = isolation.probe().bwrap
    system = [bubblewrap, "--bind", "/", "/", "--dev", "/dev", "--ro-bind", str(index.authority), bundle]
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}

    def install(target: str, variables: dict[str, str]) -> bool:
        argv = [*system, *command(program, index.url, tmp_path / target)]
        done = subprocess.run(argv, env=plain | variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or "certificate" in (done.stdout + done.stderr).lower()
        return (tmp_path / target / "one.py").exists()

    assert install("with", given)
    if program == "uv" or not pip_believes(bundle):
        assert not install("without", {})
