"""Operations on landed files: compaction, reshard, scrub, sweep, verification, and decisions on quarantined files.

May import `landing.consume` and the folders before it.
"""
