"""GPU checks and scrubs as the control plane sees them: asked for, sent, answered, acted upon.

Locks are taken in one order: queue, workspace, device, run. The row is the truth; messages only hint.
"""
