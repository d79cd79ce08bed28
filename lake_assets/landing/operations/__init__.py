"""What is done to landed files: compaction, reshard, scrub, verification.

May import `landing.consume` and the rooms before it.
"""
