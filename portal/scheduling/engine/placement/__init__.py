"""Pure functions: a snapshot and a request go in, a decision comes out."""
