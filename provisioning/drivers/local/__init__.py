"""The local driver: runs workspaces as processes of this machine, in a sandbox if available."""
