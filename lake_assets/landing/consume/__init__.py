"""From Kafka to files: readers, messages, tailers, heartbeats, delivery, and fetching again what a zone lacks.

May import `landing.manifest` and `landing.files`.
"""
