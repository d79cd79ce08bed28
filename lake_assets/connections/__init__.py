"""Connections to services: where they listen and how clients are configured. Catalog, Spark, Kafka, ZooKeeper.

May import `base`, `errors` and `settings`.
"""
