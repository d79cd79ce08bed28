"""Copies of engagements: which of them is stored, and where a stored one may be.

May import the engagement lake's `model`, and `connections`.
"""
