"""Cost of isolating workspaces: memory, CPU and start time of each, and speed of the route to the app."""
