"""Erasing a subject from landed files, and the certificate of them.

May import `landing.operations` and the folders before it.
"""
