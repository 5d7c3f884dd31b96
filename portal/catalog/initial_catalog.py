"""The catalog that a new installation starts with. Operators change it afterwards as they like."""

from __future__ import annotations

from typing import Any

from provisioning.preloading import JUPYTER_MAIN

JUPYTER_ARGV = [
    "python3",
    "-c",
    JUPYTER_MAIN,
    "--no-browser",
    "--ip=127.0.0.1",
    "--port={port}",
    "--ServerApp.port_retries=0",
    "--ServerApp.root_dir={home}",
    # The gateway has checked the Host header and who it is; the token guards the port itself.
    "--ServerApp.allow_remote_access=True",
    "--ServerApp.quit_button=False",
    "--ServerApp.log_level=WARN",
    # Nothing is fetched from the internet.
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
]

TEMPLATES: list[dict[str, Any]] = [
    {
        "slug": "jupyterlab",
        "name": "JupyterLab",
        "description": "Notebooks, terminals and files in the browser.",
        "icon": "notebook",
        "program": "jupyter-lab",
        "install_hint": "Run `make up`, which installs it, or choose another template.",
        "argv": JUPYTER_ARGV,
        "env": {"JUPYTER_TOKEN": "{token}"},
        "ready_path": "/api",
        "open_path": "/lab",
        "upstream_auth": "bearer",
        "activity": "jupyter",
        "work_lost": "accelerated",
        "position": 10,
    },
    {
        "slug": "marimo",
        "name": "marimo",
        "description": "Reactive Python notebooks that are plain Python files.",
        "icon": "notebook",
        "program": "marimo",
        "install_hint": "Run `make up`, which installs it, or choose another template.",
        "argv": [
            "marimo",
            "--quiet",
            "--yes",
            "edit",
            "--headless",
            "--skip-update-check",
            "--no-sandbox",
            "--host=127.0.0.1",
            "--port={port}",
            "--token-password-file={token_file}",
            "{home}",
        ],
        "env": {},
        "ready_path": "/health",
        "open_path": "/",
        "upstream_auth": "bearer",
        "activity": "marimo",
        "work_lost": "accelerated",
        "position": 20,
    },
    {
        "slug": "vscode",
        "name": "VS Code",
        "description": "The editor in the browser, by code-server.",
        "icon": "code",
        "program": "code-server",
        "install_hint": "An operator builds the environment “VS Code”: Environments, VS Code, Build.",
        "argv": [
            "code-server",
            "--bind-addr=127.0.0.1:{port}",
            "--auth=password",
            "--disable-telemetry",
            "--disable-update-check",
            # The folder is one's own home.
            "--disable-workspace-trust",
            "--disable-getting-started-override",
            "{home}",
        ],
        "env": {"HASHED_PASSWORD": "{token}"},
        "ready_path": "/healthz",
        "open_path": "/",
        "upstream_auth": "code-server",
        # Its editors are shown by one.
        "service_workers": True,
        "activity": "code-server",
        "work_lost": "accelerated",
        "position": 30,
    },
]

FLAVORS: list[dict[str, Any]] = [
    {
        "slug": "cpu-small",
        "name": "Small CPU",
        "description": "For editing, small data and trying things.",
        "cpu_milli": 1000,
        "memory_mib": 2048,
        "position": 10,
    },
    {
        "slug": "cpu-large",
        "name": "Large CPU",
        "description": "For preparing data without an accelerator.",
        "cpu_milli": 2000,
        "memory_mib": 4096,
        "position": 20,
    },
]
