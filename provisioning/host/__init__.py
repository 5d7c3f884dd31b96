"""A machine as a node of a portal on another machine: it joins, runs, rotates its keys and leaves."""
