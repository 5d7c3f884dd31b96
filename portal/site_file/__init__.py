"""The site as a file: exported, compared and applied through the services of each section."""
