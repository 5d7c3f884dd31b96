"""What lies on nodes and is owned by nobody."""
