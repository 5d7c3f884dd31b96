"""What is taken back, and when: pure functions of what was seen, of a policy and of the time.

Times are seconds since the epoch, by the portal's clock.
"""
