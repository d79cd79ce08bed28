"""The algebra of requests to convert, merge, delete and erase ids. Pure; `grouped` applies it by org on Spark.

May import `base` and `errors`.
"""
