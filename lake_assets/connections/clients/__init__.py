"""Properties that are given once, in the words of each client: pyiceberg and Spark, librdkafka and Java. Pure.

May import `base`, `errors`, `passed_properties` and `settings`.
"""
