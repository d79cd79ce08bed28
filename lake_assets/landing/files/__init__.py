"""Landed files: records, checksums, formats, where files are cut, a zone's folder. Pure, but for the folder.

May import `base`, `connections` and `errors`.
"""
