"""GPU checks and scrubs as the control plane sees them: asked for, sent, answered, acted upon.

`requests`, `results`, `policy` and `handout` write, `reading` and `baselines` judge, `selectors` read;
`pages`, `views` and `api` show it. Locks are taken in one order: queue, workspace, device, run. The row
is the truth; messages only hint.
"""
