"""Django's database backends for tests that are rolled back: what waits for a commit runs when it would."""
