"""The site as a file: exported, compared and applied through each room's own services."""
