"""Numbers and names in the sentences that users read."""

from __future__ import annotations

from provisioning.types import AcceleratorRequest


def cores(milli: int) -> str:
    return f"{milli / 1000:g}"


def gib(mib: int) -> str:
    return f"{mib / 1024:.3g}"


def device_label(wanted: AcceleratorRequest) -> str:
    """What the request calls its devices: `H100`, `H100 or A100`, or `accelerator`."""
    return " or ".join(dict.fromkeys(wanted.allowed_models)) or "accelerator"
