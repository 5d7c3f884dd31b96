"""What fields of requests may look like, where a schema alone leaves one guessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, Any] = {
    "after_hours_minutes": 30,
    "amount": 2000,
    "amount_at_most": 4000,
    "amount_cents": 500_000,
    "amounts": {"gpu:h100": 2000},
    "argv": ["python3", "-m", "http.server", "{port}"],
    "borrowing_limit": 4000,
    "checkpointed": True,
    "check_every_hours": 24,
    "claims": {"sub": "repo:octo/app", "repository": "octo/app"},
    "cohort": "research",
    "confirm": "vision/anna",
    "config": {"sandbox": "gvisor"},
    "cpu_milli": 4000,
    "description": "For fine-tuning.",
    "device": "GPU-6f3c1f1e-8c0f-4d0c-9a77-2f6d2c1f0b11",
    "disk_mib": 102_400,
    "driver": "local",
    "egress_allow": "pypi.org\nfiles.pythonhosted.org",
    "ends_at": "2026-12-04T17:00:00Z",
    "env": {"HF_HOME": "/home/me/.cache/huggingface"},
    "environment": "vision-tools",
    "expected_hours": 8,
    "expires_at": "2026-12-31T00:00:00Z",
    "flavor": "gpu-small",
    "for": "flavor:a100-full",
    "git_ref": "main",
    "git_url": "https://git.example.org/vision/notebooks.git",
    "holidays": ["2026-12-25"],
    "hours": 4,
    "hours_at_most": 24,
    "idle_gpu_minutes": 60,
    "idle_minutes": 240,
    "issuer": "https://token.actions.githubusercontent.com",
    "kinds": ["workspace.failed"],
    "lending_limit": 4000,
    "lifetime_hours": 8,
    "longest_hours": 72,
    "max_lifetime_hours": 72,
    "default_lifetime_hours": 8,
    "memory_mib": 16_384,
    "message": "I train the models of the new project.",
    "mig_profile": "1g.10gb",
    "mounts": ["datasets"],
    "name": "trial",
    "quota": 8000,
    "notice_minutes": 15,
    "note": "Until the deadline.",
    "open_path": "/lab",
    "overlap_hours": 24,
    "path": "data/train.csv",
    "paths": ["data/old.csv"],
    "priority": 0,
    "rate_milli": 1000,
    "ready_path": "/api",
    "release_gpu_minutes": 45,
    "resource": "gpu:h100",
    "source": "torch\npandas>=2",
    "starts_at": "2026-12-01T08:00:00Z",
    "subject_token": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyZXBvOm9jdG8vYXBwIn0.c2lnbmF0dXJl",
    "team": "vision",
    "template": "jupyterlab",
    "teams": [{"team": "vision", "role": "member"}],
    "to": "node-2",
    "title": "Workshop",
    "types": ["workspace.started"],
    "until": "2026-12-04T17:00:00Z",
    "url": "https://git.example.org/anna/dotfiles.git",
    "username": "anna",
    "vault_key": "token",
    "vault_path": "teams/vision/huggingface",
    "with_node": "6f1c2a52-0f57-4f0e-8d4c-3b1f5a7e9c21",
    "workspaces": ["0b3e5c1e-2f7b-4c39-9d2e-0d6b6a9a5f10"],
    "yaml": "berth: 1\nteams:\n  vision:\n    name: Vision\n",
    "zone": "Europe/Berlin",
}
"""By name; a field's own example wins."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def example_of(name: str, field: Mapping[str, Any]) -> Any:
    """An example of a field, None where there is none or the name is that of something else here."""
    example = EXAMPLES.get(name)
    kinds = field.get("type", [])
    if example is None or "enum" in field or "enum" in field.get("items", ()):
        return None
    if isinstance(example, list) and isinstance(example[0], dict) != ("$ref" in field.get("items", ())):
        return None
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if isinstance(example, _TYPES.get(kind, ())):
            return example
    return None
