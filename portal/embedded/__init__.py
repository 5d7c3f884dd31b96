"""The embedded mode: every process of the portal under one supervisor on one machine.

Everything that runs before Django is set up uses the standard library only, so that a broken or missing
environment ends in one clear line instead of a traceback.
"""
