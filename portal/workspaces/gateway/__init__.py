"""Lets people and programs into workspaces: routes, tickets, sessions and forward-auth.

`routes` and `feed` give Traefik the addresses of workspaces, `state` holds who may enter one and with which
upstream secret, `tickets` turns a sign-in at the portal into a session on the workspace's own origin,
`access` decides who enters, `app` (on Starlette) answers Traefik's forward-auth requests, and `asgi` puts it
before Django. `portal.embedded.traefik` is the matching configuration.
"""
