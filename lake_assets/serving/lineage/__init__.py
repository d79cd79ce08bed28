"""Which segments replaced which: the protocol, and its nodes in ZooKeeper.

May import `errors` and `serving.errors`.
"""
