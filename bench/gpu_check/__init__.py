"""Acceptance test of the GPU check on a real device, in one command."""
