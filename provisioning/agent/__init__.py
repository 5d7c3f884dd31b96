"""What runs inside workspaces, on the standard library alone: the agent (`program`) and what goes with it.

`apps` imports apps ahead of time, `files` serves the files of a home, `jupyter` is JupyterLab's extension.
"""
