"""Home folders: where they lie, who uses them, limits, moves, archives, and what becomes of lost ones."""
