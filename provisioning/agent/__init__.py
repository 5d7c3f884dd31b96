"""The agent: the small process inside every workspace. One file, standard library only."""
