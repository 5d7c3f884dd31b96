"""Lets people and programs into workspaces: views, tickets, sessions and forward-auth.

`workspace_views` stores each workspace's address, permitted users and upstream secret. `tickets` turns a
sign-in at the portal into a session on the workspace's own origin. `access` decides who enters. `app` (on
Starlette) answers the front door's forward-auth requests, and `asgi` puts it before Django.
`portal.embedded.proxy` is the matching configuration.
"""
