"""`lake`: the command line, one file for each group of commands.

May import everything but `definitions` and `resources`. Slow imports stand inside the commands.
"""
