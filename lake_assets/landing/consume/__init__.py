"""From Kafka to files: readers, messages, tailers, heartbeats, delivery, and the refetch of missing files.

May import `landing.manifest` and `landing.files`.
"""
