"""All workspaces that a user may see, as a table: filters, order, export, and acts on many."""
