"""GPU checks and scrubs as the control plane sees them: asked for, sent, answered, acted upon.

`runs`, `results`, `policy`, `preflight` and `settings` write, `lost_runs` and `lost_devices` end what has
gone; `report_reader` and `baselines` judge, `selectors` read; `presenters`, `views` and `api` show it. In
`kinds` each kind of run has a handler, which all of them ask. Locks are taken in one order: queue,
workspace, device, run. The row is the truth; messages only hint.
"""
