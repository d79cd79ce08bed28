"""Maintenance of a lake's files under the coordinator, and moving a lake to another ZooKeeper.

May import `engagement.streams` and the folders before it.
"""
