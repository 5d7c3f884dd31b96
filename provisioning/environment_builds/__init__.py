"""Builds software environments on a node with uv, in sandboxes (docs/adr/0031)."""
