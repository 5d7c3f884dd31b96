"""Home folders: where they are stored, and their moves, archives, evacuations, deletions and limits."""
