"""Building software environments on a node with uv, in sandboxes of their own (docs/adr/0031)."""
