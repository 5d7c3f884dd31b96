"""Reports: daily GPU use and Prometheus metrics."""
