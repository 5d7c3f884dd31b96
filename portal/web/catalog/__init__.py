"""Pages that show and keep the catalog, with what an entry would get now."""
