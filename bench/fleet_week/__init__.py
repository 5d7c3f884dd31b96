"""A week of a simulated fleet, through the portal's own functions with its default policy."""
