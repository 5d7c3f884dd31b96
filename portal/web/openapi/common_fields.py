"""Descriptions of fields that mean the same in every schema. A field's own `help_text` takes precedence."""

from __future__ import annotations

from collections.abc import Mapping

COMMON_FIELDS: Mapping[str, str] = {
    "id": "Unique identifier. Never changes.",
    "slug": "Slug, unique among its kind. Part of URLs.",
    "username": "Username of the account.",
    "name": "Name.",
    "description": "Description for people.",
    "message": "Message for people.",
    "next_action": "Suggested next action, as a sentence; empty for none.",
    "note": "Note for people.",
    "simulated": "Whether it is simulated, without real hardware.",
    "enabled": "Whether it is enabled.",
    "team": "Slug of the team.",
    "owner": "Username of the owner.",
    "template": "Slug of the template.",
    "flavor": "Slug of the flavor.",
    "pool": "Slug of the pool.",
    "node": "Name of the node.",
    "resource": "Resource, such as `gpu:h100`.",
    "created_by": "Username of the creator; null if unknown.",
    "created_at": "Time of creation.",
    "updated_at": "Time of the last change.",
    "ended_at": "Time of the end; null if not ended.",
    "starts_at": "Start time.",
    "ends_at": "End time.",
    "expires_at": "Time of expiry.",
    "cpu_milli": "Thousandths of a CPU core.",
    "memory_mib": "Memory in MiB.",
    "model": "Model of the accelerator.",
    "state": "Current state.",
}
