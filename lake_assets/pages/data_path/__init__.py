"""The state of the whole data path for `lake report`: one module for each stage, and `collect`, which calls them.

Reads each stage without Spark and changes nothing. May import stages and engines.
"""
