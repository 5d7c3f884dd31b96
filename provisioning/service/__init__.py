"""Programs that run as services of one machine: started in order, watched, started again, stopped.

What `make up` and `berth node run` have in common. Standard library only, so that it can be imported before
the packages are installed; `user_scope`, which looks at control groups, is the exception.
"""
