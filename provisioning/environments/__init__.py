"""Software environments on a node: addressed by their content, built by uv, shared read-only."""
