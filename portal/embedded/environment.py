"""Folders, ports and secrets of an embedded instance, and the environment of each of its processes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from portal.fleet.machines import redis_rules
from provisioning.service import door_uid
from provisioning.service.console import Problem
from provisioning.service.environ import MARKER, NODE_NAME, bare_environ, home_folder
from provisioning.service.files import write_file

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")

SERVICES_UID = 199_999
"""Just below the user IDs of workspaces (`provisioning.workspace_uids`)."""
LEAST_UID, HIGHEST_UID = 1000, 2**31 - 2

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (only a private folder in it is used)

SECRET_NAMES = ("secret_key", "gateway_secret", "redis_control", "redis_node", "control_key", "node_key")

_SECRET_VARIABLES = (
    "BERTH_SECRET_KEY",
    "BERTH_SECRET_KEY_FALLBACKS",
    "BERTH_CONTROL_KEY",
    "BERTH_GATEWAY_SECRET",
    "BERTH_REDIS_URL",
    "BERTH_REDIS_PASSWORD",
    "BERTH_ADMIN_PASSWORD",
    "BERTH_METRICS_TOKEN",
    "BERTH_PROXY_SECRET",
    "DATABASE_URL",
)


@dataclass(frozen=True, slots=True)
class Instance:
    """An embedded instance as configured by environment variables."""

    home: Path
    homes_dir: Path
    port: int
    web_port: int
    redis_port: int
    gateway_port: int
    nodes_address: str
    nodes_bind: str
    nodes_port: int
    bind: str
    domain: str
    public_url: str
    node_name: str
    agent_url: str
    multiuser: bool
    trusted_proxies: tuple[str, ...]
    read_timeout_s: int
    passes_dir: Path | None
    tls_dir: Path
    services_uid: int
    doors_uid: int

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Instance:
        """Read the variables. Raises `Problem` that names an invalid one."""
        home = home_folder(environ)
        port = _port(environ, "BERTH_PORT", 8000)
        web_port = _port(environ, "BERTH_WEB_PORT", port + 1)
        redis_port = _port(environ, "BERTH_REDIS_PORT", port + 2)
        # Skip the third port, which a separate database often uses.
        gateway_port = _port(environ, "BERTH_GATEWAY_PORT", min(port + 5, 65535))
        nodes_address = _host(environ, "BERTH_NODES_ADDRESS")
        nodes_port = _port(environ, "BERTH_NODES_PORT", min(port + 7, 65534))
        if len({port, web_port, redis_port, gateway_port}) < 4:
            raise Problem(
                f"BERTH_PORT ({port}), BERTH_WEB_PORT ({web_port}), BERTH_REDIS_PORT ({redis_port}) and "
                f"BERTH_GATEWAY_PORT ({gateway_port}) must differ.",
                "Set only BERTH_PORT; the others are derived from it.",
            )
        domain = (environ.get("BERTH_DOMAIN") or "localhost").lower()
        public_url = (environ.get("BERTH_PUBLIC_URL") or f"http://{domain}:{port}").rstrip("/")
        if urlsplit(public_url).scheme not in {"http", "https"} or not urlsplit(public_url).hostname:
            raise Problem(
                f"BERTH_PUBLIC_URL is “{public_url}”, which is not a web address.",
                "Use the form https://berth.example.org.",
            )
        node_name = environ.get("BERTH_NODE_NAME") or socket.gethostname()
        if not NODE_NAME.fullmatch(node_name):
            raise Problem(
                f"BERTH_NODE_NAME is “{node_name}”, which is not a valid node name.",
                "Use up to 120 letters, digits, dots, hyphens and underscores.",
            )
        proxies = (part.strip() for part in environ.get("BERTH_TRUSTED_PROXIES", "").split(","))
        return cls(
            home=home,
            homes_dir=Path(environ.get("BERTH_HOMES_DIR") or home / "homes").expanduser().resolve(),
            port=port,
            web_port=web_port,
            redis_port=redis_port,
            gateway_port=gateway_port,
            nodes_address=nodes_address,
            nodes_bind=environ.get("BERTH_NODES_BIND") or "0.0.0.0",  # noqa: S104
            nodes_port=nodes_port,
            bind=environ.get("BERTH_BIND") or "127.0.0.1",
            domain=domain,
            public_url=public_url,
            node_name=node_name,
            agent_url=environ.get("BERTH_AGENT_URL") or f"http://127.0.0.1:{web_port}",
            multiuser=environ.get("BERTH_MULTIUSER", "").lower() in {"1", "true", "yes", "on"},
            trusted_proxies=tuple(part for part in proxies if part),
            tls_dir=Path(environ.get("BERTH_TLS_DIR") or home / "run" / "tls").expanduser().resolve(),
            read_timeout_s=_seconds(environ, "BERTH_READ_TIMEOUT_S", 3600),
            passes_dir=_passes_dir(environ, home),
            services_uid=_services_uid(environ),
            doors_uid=_doors_uid(environ),
        )

    @property
    def id(self) -> str:
        """A key that distinguishes this instance's processes from those of others on the same machine."""
        return _id_of(self.home)

    @property
    def run_dir(self) -> Path:
        return self.home / "run"

    @property
    def logs_dir(self) -> Path:
        return self.home / "logs"

    @property
    def redis_dir(self) -> Path:
        return self.home / "redis"

    @property
    def local_dir(self) -> Path:
        """Folder of the local driver's state."""
        return self.home / "local"

    @property
    def environments_dir(self) -> Path:
        return self.home / "environments"

    @property
    def web_url(self) -> str:
        """URL of the web processes, without the front door."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def gateway_url(self) -> str:
        """URL of the process for forward-auth, workspaces' own hosts and event streams."""
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def redis_door_port(self) -> int:
        """Port at which other machines reach Redis over TLS."""
        return self.nodes_port + 1

    @property
    def tls_apart(self) -> bool:
        """Whether the authority has a separate folder to protect its key, as in containers."""
        return self.tls_dir != self.run_dir / "tls"

    @property
    def doors_dir(self) -> Path:
        """Folder with the files that the machines' doors read."""
        return self.home / "doors" if self.tls_apart else self.run_dir

    @property
    def door_socket_dir(self) -> Path:
        """Folder of the machines' HTTPS socket, for its guard, and of its Caddy."""
        return self.home / "door-socket"

    @property
    def nodes_listen(self) -> tuple[str, str]:
        """Addresses of the two doors as `host:port`: HTTPS and Redis."""
        bind = f"[{self.nodes_bind}]" if ":" in self.nodes_bind else self.nodes_bind
        return f"{bind}:{self.nodes_port}", f"{bind}:{self.redis_door_port}"

    @property
    def keys_dir(self) -> Path:
        """Folder of the public keys with which control plane and nodes verify each other."""
        return self.home / "keys"

    @property
    def redis_node_user(self) -> str:
        """Redis user of this node."""
        return redis_rules.user_of(self.node_name)

    def redis_url(self, user: str, password: str) -> str:
        return f"redis://{user}:{password}@127.0.0.1:{self.redis_port}/0"

    def variables(self) -> dict[str, str]:
        """Return all public variables explicitly, independent of the processes' working folders."""
        return {
            "BERTH_HOME": str(self.home),
            "BERTH_HOMES_DIR": str(self.homes_dir),
            "BERTH_PORT": str(self.port),
            "BERTH_WEB_PORT": str(self.web_port),
            "BERTH_REDIS_PORT": str(self.redis_port),
            "BERTH_GATEWAY_PORT": str(self.gateway_port),
            "BERTH_NODES_ADDRESS": self.nodes_address,
            "BERTH_NODES_PORT": str(self.nodes_port),
            "BERTH_TLS_DIR": str(self.tls_dir),
            "BERTH_DOMAIN": self.domain,
            "BERTH_PUBLIC_URL": self.public_url,
            "BERTH_NODE_NAME": self.node_name,
            "BERTH_AGENT_URL": self.agent_url,
            "BERTH_MULTIUSER": "1" if self.multiuser else "0",
        }

    def portal_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of web, control, beat and the preparations. Secrets stay in their files."""
        return {**environ, **self.variables(), "PYTHONUNBUFFERED": "1"}

    def node_environ(
        self, environ: Mapping[str, str], *, node_password: str, node_key: str
    ) -> dict[str, str]:
        """Return the node worker's environment: no database, no portal secret, a restricted Redis user."""
        inherited = {
            key: value
            for key, value in environ.items()
            if key.startswith("BERTH_") and key not in _SECRET_VARIABLES and key != MARKER
        }
        return {
            **bare_environ(environ),
            **inherited,
            **self.variables(),
            "BERTH_NODE_REDIS_URL": self.redis_url(self.redis_node_user, node_password),
            "BERTH_NODE_KEY": node_key,
            "PYTHONUNBUFFERED": "1",
        }


def _id_of(home: Path) -> str:
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:12]


def _passes_dir(environ: Mapping[str, str], home: Path) -> Path | None:
    """Return the in-memory folder of passes, whose names grant access and must not be on disk."""
    text = environ.get("BERTH_PASSES_DIR", "")
    if text == "none":
        return None
    if text and not Path(text).is_absolute():
        raise Problem(f"BERTH_PASSES_DIR is “{text}”.", "Set an absolute path in a tmpfs, or leave it empty.")
    if text:
        return Path(text)
    return SHARED_MEMORY / f"berth-{os.geteuid()}-{_id_of(home)}" if SHARED_MEMORY.is_dir() else None


def _port(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 65535:
        raise Problem(f"{name} is “{text}”, which is not a port.", "Set a number from 1 to 65535.")
    return int(text)


def _host(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "").strip()
    if text and not _HOST.fullmatch(text):
        raise Problem(
            f"{name} is “{text}”, which is not a host name or address.",
            "Set the address of this machine for others, for example berth.example.org or 10.0.0.5.",
        )
    return text


def _services_uid(environ: Mapping[str, str]) -> int:
    """Return the user ID of services if root starts them; 0 for root itself."""
    text = environ.get("BERTH_SERVICES_UID", "").strip() or str(SERVICES_UID)
    if text != "0" and not (text.isascii() and text.isdecimal() and LEAST_UID <= int(text) <= HIGHEST_UID):
        raise Problem(
            f"BERTH_SERVICES_UID is “{text}”, which is not a user id for services.",
            f"Set an unused number from {LEAST_UID} to {HIGHEST_UID}, or 0.",
        )
    return int(text)


def _doors_uid(environ: Mapping[str, str]) -> int:
    try:
        return door_uid.number(environ)
    except ValueError as error:
        raise Problem(f"{error}.", "Choose an unused one.") from error


def _seconds(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 604_800:
        raise Problem(f"{name} is “{text}”, which is not a duration.", "Set seconds, from 1 to 604800.")
    return int(text)


def ensure_secrets(home: Path) -> tuple[dict[str, str], bool]:
    """Create missing secrets of the instance. Returns all secrets, and whether any was created.

    Each secret is in a separate file that only this user can read. Files are written atomically.
    """
    folder = home / "secrets"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    values: dict[str, str] = {}
    created = False
    for name in SECRET_NAMES:
        path = folder / name
        try:
            value = path.read_text().strip()
        except FileNotFoundError:
            value = ""
        if value:
            path.chmod(0o600)
        else:
            value = secrets.token_hex(32)
            write_file(path, value + "\n", mode=0o600)
            created = True
        values[name] = value
    return values, created
