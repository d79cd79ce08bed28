"""Segments and who changes them: files, drafts, leases, the writer; and the tables that they come from.

May import `serving.lineage`.
"""
