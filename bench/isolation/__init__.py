"""What keeping workspaces apart costs: memory, CPU and start of each, and the way to one."""
