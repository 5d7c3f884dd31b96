"""The seccomp filter for every process of a sandbox (docs/adr/0026)."""
