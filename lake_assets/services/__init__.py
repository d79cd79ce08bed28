"""The services of one machine: installing, starting, watching and stopping them.

May import `connections`, `base`, `errors` and `settings`.
"""
