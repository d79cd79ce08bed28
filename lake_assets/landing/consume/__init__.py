"""Messages of Kafka: readers, ids and ends of topics, heartbeats, and how far idle partitions have been read.

May import `landing.topics`, `landing.manifest` and `landing.files`.
"""
