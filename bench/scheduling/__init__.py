"""Replay of a cluster's trace through the scheduling engine, beside FIFO and EASY back-fill."""
