"""Erasing a subject from tables and their files, and the certificate that searches for what is left.

May import `incremental.operations`, `incremental.engine` and the folders before them.
"""
