"""A real server with Vault's protocol (OpenBao, from a Python package of the tests) on a loopback port."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hvac
import pytest

from tests.instance import eventually
from tests.ports import consecutive_ports

POLICY = """
path "secret/data/berth/*" { capabilities = ["read"] }
path "secret/data/berth/forbidden/*" { capabilities = ["deny"] }
"""


class VaultServer:
    """A server that starts sealed; `start` unseals it and creates an engine, a policy and an AppRole.

    The engine is KV version 2. All data is in memory, so a killed server restarts empty.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.port = port or consecutive_ports(2)
        self.address = f"http://127.0.0.1:{self.port}"
        self.secret_id_file = folder / "secret-id"
        self.token_file = folder / "token"
        self.role_id = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._unseal_key = ""

    def start(self) -> None:
        """Start and unseal the server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "bao.hcl"
        settings.write_text(
            'storage "inmem" {}\n'
            f'listener "tcp" {{ address = "127.0.0.1:{self.port}"\n tls_disable = true }}\n'
            f'api_addr = "{self.address}"\n'
        )
        with (self.folder / "bao.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "bao"), "server", f"-config={settings}"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.root = hvac.Client(self.address, token="", timeout=20)
        eventually(self._answers, limit_s=60, what=lambda: (self.folder / "bao.log").read_text())
        initialized = self.root.sys.initialize(1, 1)
        self._unseal_key, self.root.token = initialized["keys"][0], initialized["root_token"]
        self.unseal()
        self.root.sys.enable_secrets_engine("kv", path="secret", options={"version": "2"})
        self.root.sys.create_or_update_policy("berth", POLICY)
        self.root.sys.enable_auth_method("approle")
        self.root.auth.approle.create_or_update_approle("berth", token_policies=["berth"], token_ttl="20m")
        self.role_id = self.root.auth.approle.read_role_id("berth")["data"]["role_id"]
        self.new_secret_id()
        self.token_file.write_text(self.new_token())

    def _answers(self) -> bool:
        with contextlib.suppress(Exception):
            self.root.sys.read_init_status()
            return True
        return False

    def new_secret_id(self) -> None:
        secret_id = self.root.auth.approle.generate_secret_id("berth")["data"]["secret_id"]
        self.secret_id_file.write_text(f"{secret_id}\n")

    def new_token(self) -> str:
        """Return a token with the portal's policy."""
        return str(self.root.auth.token.create(policies=["berth"])["auth"]["client_token"])

    def write(self, path: str, **values: Any) -> None:
        # The engine is not ready immediately after it is enabled.
        def written() -> bool:
            with contextlib.suppress(hvac.exceptions.InvalidRequest):
                self.root.secrets.kv.v2.create_or_update_secret(path, values)
                return True
            return False

        eventually(written, limit_s=30, what="the engine takes values")

    def seal(self) -> None:
        self.root.sys.seal()

    def unseal(self) -> None:
        self.root.sys.submit_unseal_key(self._unseal_key)
        eventually(lambda: self._active(), limit_s=30, what="it is unsealed and active")

    def _active(self) -> bool:
        with contextlib.suppress(Exception):
            return bool(self.root.sys.read_health_status(method="GET").get("sealed") is False)
        return False

    def settings(self) -> dict[str, Any]:
        """Return the settings with which the portal reads it by its AppRole."""
        return {
            "BERTH_VAULT_ADDR": self.address,
            "BERTH_VAULT_ROLE_ID": self.role_id,
            "BERTH_VAULT_SECRET_ID_FILE": str(self.secret_id_file),
            "BERTH_VAULT_TOKEN_FILE": "",
        }

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None


@contextlib.contextmanager
def running(folder: Path, port: int = 0) -> Iterator[VaultServer]:
    server = VaultServer(folder, port)
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def vault_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VaultServer]:
    with running(tmp_path_factory.mktemp("vault")) as server:
        yield server
