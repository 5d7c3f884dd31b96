"""The table of all workspaces that a user may see: filters, order, export, and bulk actions."""
