"""Watches the GPUs of a node between checks: XIDs, from the kernel's log and from NVML's events."""
