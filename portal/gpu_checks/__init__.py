"""GPU checks and scrubs in the control plane.

`runs`, `results`, `policy`, `preflight` and `settings` write; `lost_runs` and `lost_devices` handle losses;
`report_reader` and `baselines` judge reports; `selectors` read; `presenters`, `views` and `api` are the
interface. Each kind of run has a handler in `kinds`. Lock order: queue, workspace, device, run. The database
row is authoritative; messages are only hints.
"""
