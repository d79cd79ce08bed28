"""What a lake is: its configuration, tables, messages, topics, checkpoints, and the order of turns.

May import `engagement.requests`, `coordination` and `connections`.
"""
