"""The engagement demo: its scenes, the parts that they use, and the turns that the coordinator records.

May import the other modules of `demo`, but not the membership demo.
"""
