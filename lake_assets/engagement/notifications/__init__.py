"""Notifications of commits: writing them, and reading the changes that they name.

May import `engagement.model`.
"""
