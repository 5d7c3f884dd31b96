"""The reclaim engine decides what to reclaim and when. Pure functions of observations, policy and time.

Times are seconds since the epoch, by the portal's clock.
"""
