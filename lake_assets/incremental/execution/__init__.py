"""Running sessions: the engine, the log of sessions, the steps from planned to committed.

May import `incremental.staging` and the rooms before it.
"""
