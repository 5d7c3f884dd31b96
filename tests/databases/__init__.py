"""Django database backends for tests in a transaction: `on_commit` callbacks run when they would."""
