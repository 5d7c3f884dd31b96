"""Suspend CUDA processes with CUDA checkpoints: free their GPU and keep the contents of its memory.

`states` chooses the next call. `walk` makes the calls and goes back if one fails. `run` does that in a
separate process with a deadline. `room` checks the host's memory. `trial` tests suspension on this machine,
and `grant` checks whether a trial is still valid.
"""
