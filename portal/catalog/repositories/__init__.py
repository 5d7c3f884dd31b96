"""Git repositories that workspaces clone: which addresses are taken, and dotfiles of users."""
