"""Navigation of all pages: the menu by role, and the search over everything (Ctrl-K)."""
