"""Landed files: records, checksums, formats, file cutover and the folder of a zone. Pure, except for the folder.

May import `base`, `connections` and `errors`.
"""
