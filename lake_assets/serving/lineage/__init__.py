"""The lineage of served tables: which segments replaced which; the protocol that changes it, and its ZooKeeper nodes.

May import `errors` and `serving.errors`.
"""
