"""Settled mutation requests: what the next batches need of requests that were applied, or are dead.

May import what `engagement.streams` may import, and the modules of that folder that do not import this one.
"""
