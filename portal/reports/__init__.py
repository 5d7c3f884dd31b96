"""Reports about GPU use, and Prometheus metrics."""
