"""Lets people and programs into workspaces: routes, tickets, sessions and forward-auth.

`routes` and `feed` tell Traefik where a workspace answers, `state` says who may enter it and with which
upstream secret, `tickets` turns a sign-in at the portal into a session on the workspace's own
origin, `app` answers Traefik's forward-auth requests and `traefik` is the matching configuration.
"""
