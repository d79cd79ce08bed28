"""Erasure in served tables: segments from before an erasure, and their part of the certificate.

May import `serving.store` and `serving.served_tables`.
"""
