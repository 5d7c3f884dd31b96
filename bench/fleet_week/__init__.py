"""A week of a simulated fleet, through the portal's own path with its default policy."""
