"""Settings for the site: folders, ports, URLs, and the secrets of its processes."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from portal.settings.checks import networks
from portal.settings.parsing import env, ports, secret
from provisioning.endpoints import PROBE_LABEL
from provisioning.service.environ import home_folder

BASE_DIR = Path(__file__).resolve().parents[2]
BERTH_HOME = home_folder(os.environ)
BERTH_PORT = env.int("BERTH_PORT", default=8000)
BERTH_WEB_PORT = env.int("BERTH_WEB_PORT", default=BERTH_PORT + 1)
BERTH_GATEWAY_PORT = env.int("BERTH_GATEWAY_PORT", default=BERTH_PORT + 5)
BERTH_REDIS_PORT = env.int("BERTH_REDIS_PORT", default=BERTH_PORT + 2)
BERTH_DOMAIN = env.str("BERTH_DOMAIN", default="localhost")
BERTH_PUBLIC_URL = env.str("BERTH_PUBLIC_URL", default=f"http://{BERTH_DOMAIN}:{BERTH_PORT}").rstrip("/")
_public = urlsplit(BERTH_PUBLIC_URL)
BERTH_PUBLIC_HOST = _public.hostname or "localhost"
BERTH_PUBLIC_ORIGIN = f"{_public.scheme}://{_public.netloc}"
HTTPS = _public.scheme == "https"
_port = f":{_public.port}" if _public.port else ""
BERTH_PROBE_ORIGIN = f"{_public.scheme}://{PROBE_LABEL}.{BERTH_DOMAIN}{_port}"
BERTH_NODE_NAME = env.str("BERTH_NODE_NAME", default=socket.gethostname())
BERTH_AGENT_URL = env.str("BERTH_AGENT_URL", default=f"http://127.0.0.1:{BERTH_WEB_PORT}")
BERTH_MULTIUSER = env.bool("BERTH_MULTIUSER", default=False)
# Name or address at which other machines reach this one. Empty: machines cannot join. Redis uses the next
# port.
BERTH_NODES_ADDRESS = env.str("BERTH_NODES_ADDRESS", default="").strip()
BERTH_NODES_PORT = env.int("BERTH_NODES_PORT", default=BERTH_PORT + 7)
# Ports on which the two ends of a link check connect: one port per running check.
BERTH_CHECK_PORTS = ports("BERTH_CHECK_PORTS", "29400-29431")
BERTH_TLS_DIR = Path(env.str("BERTH_TLS_DIR", default="") or BERTH_HOME / "run" / "tls")

DEBUG = env.bool("BERTH_DEBUG", default=False)
SECRET_KEY = secret("BERTH_SECRET_KEY", "secret_key")
if not SECRET_KEY:
    # Commands such as `migrate` or `check` run before `make up` has written the secrets. Processes that
    # serve requests refuse to start with this value (portal.common.system_checks).
    SECRET_KEY = "insecure-" + hashlib.sha256(str(BERTH_HOME).encode()).hexdigest()
# Earlier secret keys. Their signatures stay valid.
SECRET_KEY_FALLBACKS = env.list("BERTH_SECRET_KEY_FALLBACKS", default=[])
BERTH_GATEWAY_SECRET = secret("BERTH_GATEWAY_SECRET", "gateway_secret")
# Folder of passes that the gateway process writes for the front door (portal.common.passes). Empty or `none`
# disables them.
BERTH_PASSES_DIR = env.str("BERTH_PASSES_DIR", default="")
if BERTH_PASSES_DIR == "none":
    BERTH_PASSES_DIR = ""
# The signing key of the control plane, the public keys of nodes, and the nodes that work for pools without
# nodes.
BERTH_CONTROL_KEY = secret("BERTH_CONTROL_KEY", "control_key")
BERTH_NODE_KEYS_DIR = BERTH_HOME / "keys" / "nodes"
BERTH_ENGINE_NODES = env.list("BERTH_ENGINE_NODES", default=[BERTH_NODE_NAME])
# Addresses of proxies in front of the front door, and the secret that authenticates a proxy on this machine.
BERTH_TRUSTED_PROXIES = networks(
    "BERTH_TRUSTED_PROXIES",
    (value for value in env.list("BERTH_TRUSTED_PROXIES", default=[]) if value.strip()),
    strict=False,
    advice="Write addresses or networks.",
)
BERTH_PROXY_SECRET = secret("BERTH_PROXY_SECRET", "proxy_secret")
_redis_password = secret("BERTH_REDIS_PASSWORD", "redis_control")
BERTH_REDIS_URL = env.str(
    "BERTH_REDIS_URL",
    default=(
        f"redis://control:{_redis_password}@127.0.0.1:{BERTH_REDIS_PORT}/0"
        if _redis_password
        else f"redis://127.0.0.1:{BERTH_REDIS_PORT}/0"
    ),
)
# A separate secret for Prometheus. Without it, metrics need a token with the scope pools:read.
BERTH_METRICS_TOKEN = secret("BERTH_METRICS_TOKEN", "metrics_token")
