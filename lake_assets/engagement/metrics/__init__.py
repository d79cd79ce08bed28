"""The metrics of a lake, refreshed from its notifications.

May import `engagement.notifications` and the folders before it.
"""
