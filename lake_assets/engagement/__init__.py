"""Engagement lakes: Delta tables that ingestion, mutation and retention change in turns.

What ids come to is in `requests`; `lake`, `messages`, `tables` and `checkpoint` say what a lake is; `batch` is the
micro-batch of the three streams `ingestion`, `mutation` and `retention`, and `turn` their turns. Only the folder
`dagster` imports Dagster.
"""
