"""Reports: figures for Prometheus. No rows of its own."""
