"""Descriptions of fields with the same meaning in every schema. A field's own `help_text` has priority."""

from __future__ import annotations

from collections.abc import Mapping

COMMON_FIELDS: Mapping[str, str] = {
    "id": "Unique identifier. Never changes.",
    "slug": "Slug, unique among its kind. Part of URLs.",
    "username": "Name of the account.",
    "name": "Name.",
    "description": "Description for people.",
    "message": "Message for people.",
    "next_action": "What to do next, in a sentence; empty if nothing is to be done.",
    "note": "Note for people.",
    "simulated": "Whether it is simulated, without real hardware.",
    "enabled": "Whether it is switched on.",
    "team": "Slug of the team.",
    "owner": "Name of the account that owns it.",
    "template": "Short name of the template.",
    "flavor": "Slug of the flavor.",
    "pool": "Slug of the pool.",
    "node": "Name of the node.",
    "resource": "Which resource, as `gpu:h100`.",
    "created_by": "Who created it; null if unknown.",
    "created_at": "When it was created.",
    "updated_at": "When it was last changed.",
    "ended_at": "When it ended.",
    "starts_at": "When it starts.",
    "ends_at": "When it ends.",
    "expires_at": "When it expires.",
    "cpu_milli": "Thousandths of a CPU core.",
    "memory_mib": "Memory in MiB.",
    "model": "Model of the accelerator.",
    "state": "Current state.",
}
