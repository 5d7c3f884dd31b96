"""The local driver: workspaces as processes of this machine, in a sandbox where there is one."""
