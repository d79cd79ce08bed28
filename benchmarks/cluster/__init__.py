"""The stack of several machines as processes of one: Spark standalone, S3, PostgreSQL, three brokers, an ensemble."""
