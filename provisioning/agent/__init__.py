"""Programs that run inside workspaces, using only the standard library: the agent (`program`) and its
companions.

`apps` preloads apps, `files` serves the files of a home, `jupyter` contains JupyterLab extensions.
"""
