"""What the manifest records of topics: which topic of Kafka it was, which offsets are lost, which partitions stopped.

May import `landing.manifest` and `landing.files`.
"""
