"""Running sessions: the engine, the log of sessions, and the steps from a plan to the commit.

Read `engine`, `driver`, `run` and `steps`, in this order, to follow one session. May import `incremental.staging` and
the folders before it.
"""
