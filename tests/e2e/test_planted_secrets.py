"""A secret value is searched for everywhere: only its workspace may contain it."""

from __future__ import annotations

import base64
import os
import stat
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.e2e.conftest import Curl
from tests.e2e.kernels import channels, execute
from tests.instance import Api, Berth, eventually
from tests.vault_server import VaultServer

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("e2e")]


def forms_of(value: str) -> list[bytes]:
    """The value, and its base64 forms at every offset."""
    found = [value.encode()]
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + value.encode())
        found.append(coded[4 if shift else 0 : -4])
    return found


def holds(data: bytes, values: list[str]) -> bool:
    return any(form in data for value in values for form in forms_of(value))


def files_with(folder: Path, values: list[str]) -> list[Path]:
    found = []
    # Not `rglob`, which fails if a folder is removed meanwhile.
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) and holds(path.read_bytes(), values):
                    found.append(path)
    return found


def keys_with(store: Any, values: list[str]) -> tuple[list[bytes], int]:
    """Redis keys whose content has a value, and the number of keys."""
    read: dict[bytes, Any] = {
        b"string": store.get,
        b"list": lambda key: store.lrange(key, 0, -1),
        b"hash": store.hgetall,
        b"set": store.smembers,
        b"zset": lambda key: store.zrange(key, 0, -1),
        b"stream": store.xrange,
    }
    found, count = [], 0
    for key in store.scan_iter(count=1000):
        count += 1
        kind = store.type(key)
        content = b"" if kind == b"none" else repr(read[kind](key)).encode()
        if holds(key + content, values):
            found.append(key)
    return found, count


def processes_with(values: list[str], name: str) -> set[int]:
    """The processes whose `cmdline` or `environ` has a value."""
    found = set()
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if holds(data, values):
            found.add(int(path.parent.name))
    return found


@contextmanager
def recorded_commands(store: Any) -> Iterator[list[bytes]]:
    """All commands sent to Redis meanwhile, including messages to nodes."""
    heard: list[bytes] = []
    over = threading.Event()

    def listen(monitor: Any) -> None:
        while not over.is_set():
            heard.append(str(monitor.next_command()["command"]).encode())

    with store.monitor() as monitor:
        thread = threading.Thread(target=listen, args=(monitor,))
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            store.ping()  # the end marker
            thread.join(20)
    assert not thread.is_alive()


def test_secret_value_is_found_only_in_its_workspace(berth: Berth, ada: Api, vault: VaultServer) -> None:
    mark = uuid.uuid4().hex
    env, file, kept = f"planted-env-{mark}", f"planted-file-{mark}", f"planted-vault-{mark}"
    # Vault's value, and the token, which not even the workspace has.
    vault.start()
    vault.write("berth/users/ada/planted", key=kept)
    token = vault.token_file.read_text()
    values = [env, file, kept, token]
    place = {"vault_path": "berth/users/ada/planted", "vault_key": "key"}
    ada.json("PUT", "me/secrets/PLANTED_VAULT", {**place, "everywhere": True})
    ada.json("PUT", "me/secrets/PLANTED_ENV", {"value": env})
    ada.json("PUT", "me/secrets/PLANTED_FILE", {"value": file, "kind": "file", "everywhere": True})
    store = redis.Redis.from_url(berth.instance.redis_url("control", berth.secret("redis_control")))
    order = {"team": "lab", "template": "jupyterlab", "flavor": "cpu-small", "secrets": ["PLANTED_ENV"]}
    with recorded_commands(store) as heard:
        made = ada.json("POST", "workspaces", order)
        ada.wait(made["id"], "running")
    # Its start message was recorded, so the recording works.
    assert any(holds(command, [made["id"]]) for command in heard)
    assert not any(holds(command, values) for command in heard)
    curl, host = Curl(berth, berth.tokens["ada"]), berth.host(made["id"])
    eventually(lambda: curl("GET", "/api", host=host).status == 200, limit_s=30, what="it is entered")
    kernel = curl("POST", "/api/kernels", {"name": "python3"}, host=host)
    with channels(berth.origin(made["id"]), berth.tokens["ada"], kernel.json["id"]) as channel:
        look = (
            "import os; d = os.environ['BERTH_SECRETS_DIR']; p = d + '/PLANTED_FILE';"
            "print(os.environ['PLANTED_ENV'], open(p).read(), oct(os.stat(p).st_mode & 0o777), d);"
            "print(os.environ['PLANTED_VAULT'])"
        )
        assert execute(channel, look) == f"{env} {file} 0o400 /run/berth/secrets\n{kept}\n"
    own = {process.pid for process in berth.owned()}
    assert processes_with(values, "cmdline") == set()
    assert processes_with(values, "environ") <= own and processes_with([token], "environ") == set()
    found, count = keys_with(store, values)
    assert found == [] and count > 0
    # The home's history may contain the cells of this test.
    homes = berth.home / "homes"
    assert [path for path in files_with(berth.home, values) if not path.is_relative_to(homes)] == []
    for path in (
        *(
            "me",
            "me/secrets",
            "me/secrets/PLANTED_ENV",
            "me/secrets/PLANTED_VAULT",
            f"workspaces/{made['id']}",
            "workspaces",
        ),
        *(
            f"workspaces/{made['id']}/events",
            f"workspaces/{made['id']}/logs",
            "notifications",
            "audit-entries",
        ),
    ):
        assert not holds(ada.ask("GET", path).content, values), path
    ada.act(made["id"], "stop")
    ada.wait(made["id"], "stopped")
    assert processes_with(values, "environ") == set()
    assert [path for path in files_with(berth.home, values) if not path.is_relative_to(homes)] == []
    for name in ("PLANTED_ENV", "PLANTED_FILE", "PLANTED_VAULT"):
        ada.json("DELETE", f"me/secrets/{name}")
    store.close()
