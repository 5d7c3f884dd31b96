"""Watch the GPUs of a node between checks for XIDs, from the kernel's log and from NVML's events."""
