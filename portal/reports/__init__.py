"""Reports: what GPUs did by day, and figures for Prometheus."""
