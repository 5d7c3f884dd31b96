"""The filter of system calls that holds for every process of a sandbox (docs/adr/0026)."""
