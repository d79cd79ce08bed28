"""From messages to landed files: a tailer for each zone, delivery, and the refetch of missing files.

May import `landing.consume`, `landing.topics`, `landing.manifest` and `landing.files`.
"""
