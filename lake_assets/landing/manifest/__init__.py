"""The manifest that the zones share: the files and their state, what may be loaded or compacted, and shared state.

May import `landing.files`.
"""
