"""A machine as a node of a portal on another machine: it joins, runs, changes its keys and leaves."""
