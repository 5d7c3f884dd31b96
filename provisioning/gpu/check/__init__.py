"""CUDA validation workload that decides whether a GPU is fit for use.

`runner.run_check(uuid, level)` always returns a `Report`. See docs/gpu-check.md. This file imports nothing,
since each check starts two processes of the package.
"""
