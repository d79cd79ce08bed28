"""Verification of stored segments against their registered checksums, and the repair of those that differ.

May import `serving.store` and `serving.lineage`; the tables of the lake through `serving.store.sources`.
"""
