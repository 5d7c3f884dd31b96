"""Requests per second of REST and the gateway, beside JupyterHub, Traefik and configurable-http-proxy."""
