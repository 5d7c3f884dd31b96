"""Requests a second: REST and the gateway, beside JupyterHub, a bare Traefik and configurable-http-proxy."""
