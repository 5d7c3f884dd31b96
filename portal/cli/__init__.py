"""The command line and its client: plain HTTP, no Django."""
