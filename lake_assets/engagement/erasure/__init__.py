"""Erasure from a lake: who was erased, which texts mention an id, what Kafka still holds, the certificate.

May import `engagement.model`.
"""
