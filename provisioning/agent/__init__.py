"""Programs inside workspaces, standard library only: the agent (`program`) and its companions.

`apps` preloads apps, `files` serves the files of a home, `jupyter` contains JupyterLab extensions.
"""
