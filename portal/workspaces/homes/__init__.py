"""Home folders: their locations, moves, archives, evacuations, deletions and limits."""
