"""Isolation of messages that make a batch fail: attempts are counted, the batch is cut in halves, and a message that
fails alone becomes a dead letter.

May import `base`, `errors` and the engagement lake's `model` and `notifications`.
"""
