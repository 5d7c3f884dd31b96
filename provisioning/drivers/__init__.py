"""One folder per driver. Drivers never import each other."""
