"""Git repositories that workspaces clone: valid addresses, and dotfiles of users."""
