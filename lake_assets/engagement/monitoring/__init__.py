"""How far a lake is and whether it is right: status, audits, reconciliation with Kafka.

May import `engagement.streams` and the folders before it.
"""
