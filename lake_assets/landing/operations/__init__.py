"""Operations on landed files: compaction, reshard, scrub, sweep, verification, and decisions on quarantined files.

May import `landing.tailing` and the folders before it.
"""
