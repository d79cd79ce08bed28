"""Calling what the user has written, the functions of targets and audits, so that their mistakes are named.

May import `declaration`, `connections`, `base` and `errors`.
"""
