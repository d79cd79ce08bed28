"""Where services are and how they are reached: the catalog, Spark, Kafka, ZooKeeper.

May import `base`, `errors` and `settings`.
"""
