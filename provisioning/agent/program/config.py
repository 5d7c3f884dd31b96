"""The agent's configuration; `agent.py` documents its keys."""

# ruff: noqa: PTH108, PTH123, SIM105, UP031

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Config = dict[str, Any]

EXIT_CONFIG = 64
EXIT_PORT_TAKEN = 75


def load_config(path: str) -> Config:
    """Return the configuration with defaults. Raises `ValueError` that names a missing key."""
    with open(path, encoding="utf-8") as handle:
        config: Config = json.load(handle)
    complete(config)
    if config.get("remove_config"):
        try:
            os.unlink(path)
        except OSError:
            pass  # mounted read-only: its owner removes it
    return config


def complete(config: Config) -> None:
    """Add the defaults. Raises `ValueError` that names a missing key."""
    for key in (
        "argv",
        "ports",
        "home",
        "name",
        "workspace_id",
        "generation",
        "agent_url",
        "agent_token",
        "app_token",
        "state_path",
        "log_path",
    ):
        if key not in config:
            raise ValueError("the agent's configuration has no “%s”" % key)
    if not config["argv"] or not config["ports"]:
        raise ValueError("the agent's configuration has an empty argv or no ports")
    config.setdefault("env", {})
    config.setdefault("ready_path", "/")
    config.setdefault("activity", "")
    config.setdefault("endpoint", "http://127.0.0.1:{port}")
    config.setdefault("heartbeat_s", 15)
    config.setdefault("start_timeout_s", 120)
    config.setdefault("stop_timeout_s", 10)
    config.setdefault("log_max_bytes", 10 * 1024 * 1024)
    config.setdefault("devices", [])
    config.setdefault("shared_devices", [])
    config.setdefault("gpu_processes_visible", False)
    config.setdefault("rlimits", {})
    config.setdefault("secrets", False)
    config.setdefault("secrets_dir", "")
    config["secret_env"] = {}
    config.setdefault("packages", None)
    config.setdefault("progress_dir", "")
    config.setdefault("checkouts", [])
    config.setdefault("git_dir", "")
    config.setdefault("known_hosts", [])
    config.setdefault("egress", "open")
    config.setdefault("egress_allow", "")
    config["git_credentials"] = []
