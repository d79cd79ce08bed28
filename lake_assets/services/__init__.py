"""The services of one machine: bringing them onto it, starting, watching and stopping them.

May import `connections`, `base`, `errors` and `settings`.
"""
