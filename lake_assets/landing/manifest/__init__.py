"""The manifest that the zones share: files and their state, what may be loaded or compacted, what zones agree on.

May import `landing.files`.
"""
