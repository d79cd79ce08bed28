"""What the shell asks `lake` about itself: its version, and how to complete a command line.

May import `base`, and the group of commands that it belongs to may import it.
"""
