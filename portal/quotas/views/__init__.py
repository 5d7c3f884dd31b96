"""Pages of quota: they parse, call services and render."""
