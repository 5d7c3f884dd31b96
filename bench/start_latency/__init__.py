"""From click to notebook: the time until a new workspace's JupyterLab answers, beside its peers."""
