"""The three streams of a lake and their turns: ingestion, mutation, retention.

May import `engagement.erasure`, `engagement.notifications` and the folders before them.
"""
