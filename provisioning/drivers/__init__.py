"""One folder a driver. Drivers never import each other."""
