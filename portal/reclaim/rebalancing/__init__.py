"""Where running work would be better off, proposed to operators and carried out by them or by policy."""
