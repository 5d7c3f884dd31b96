"""The reclaim engine: what is reclaimed and when. Pure functions of observations, policy and time.

Times are seconds since the epoch, by the portal's clock.
"""
