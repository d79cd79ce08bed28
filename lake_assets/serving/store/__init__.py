"""The store of served tables: files, leases, pushes, reverts and clean-up; their sources in the lake, and their status.

May import `serving.lineage`; the tables of the lake through `incremental`.
"""
