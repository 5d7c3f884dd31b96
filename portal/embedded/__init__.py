"""The embedded mode: all processes of the portal under one supervisor on one machine.

Code that runs before Django is set up uses only the standard library, so that a broken or missing environment
gives one clear message instead of a traceback.
"""
