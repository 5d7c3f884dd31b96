"""Descriptions of fields that mean the same in every schema. A field's own `help_text` comes first."""

from __future__ import annotations

from collections.abc import Mapping

COMMON_FIELDS: Mapping[str, str] = {
    "id": "Identifies it, and never changes.",
    "slug": "Short name, unique among its kind; it stands in addresses.",
    "username": "Name of the account.",
    "name": "Its name.",
    "description": "What people should know about it.",
    "message": "A sentence for people.",
    "next_action": "What to do about it, in a sentence; empty where there is nothing to do.",
    "note": "A note for people.",
    "simulated": "Whether it is simulated instead of real hardware.",
    "enabled": "Whether it is switched on.",
    "team": "Short name of the team.",
    "owner": "Name of the account that owns it.",
    "template": "Short name of the template.",
    "flavor": "Short name of the flavor.",
    "pool": "Short name of the pool.",
    "node": "Name of the node.",
    "resource": "Which resource, as `gpu:h100`.",
    "created_by": "Who made it; null where no account is known.",
    "created_at": "When it was made.",
    "updated_at": "When it was last changed.",
    "ended_at": "When it was over.",
    "starts_at": "When it begins.",
    "ends_at": "When it ends.",
    "expires_at": "When it ends by itself.",
    "cpu_milli": "Thousandths of a CPU core.",
    "memory_mib": "Memory in MiB.",
    "model": "Model of the accelerator.",
    "state": "Its state.",
}
