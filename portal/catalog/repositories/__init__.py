"""Git repositories that workspaces clone: URL validation, and dotfiles of users."""
