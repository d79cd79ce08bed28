"""Repair of a zone's files and of their rows in the manifest, from what the other zone and the folders hold.

May import `landing.topics`, `landing.manifest` and `landing.files`.
"""
