"""Settings and stored state that the drivers of simulated pools share."""
