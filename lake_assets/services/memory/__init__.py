"""How much memory the services take, and how many runs fit beside them. Pure, but for `machine.py`."""
