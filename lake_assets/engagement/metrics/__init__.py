"""The metrics of a lake, refreshed from its notifications.

May import `engagement.notifications` and the rooms before it.
"""
