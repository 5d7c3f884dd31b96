"""CUDA processes that give their GPU away and keep what was in its memory, by CUDA's own checkpoints.

`states` says which call comes next, `walk` makes the calls and goes back where one fails, `run` has a process
of its own do that within a deadline, `room` says whether the host's memory is enough, `trial` finds out on
this very machine whether any of it works, and `grant` says whether such a trial counts.
"""
