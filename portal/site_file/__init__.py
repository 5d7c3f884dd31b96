"""Exports the site as a file, and compares and applies site files through each section's services."""
