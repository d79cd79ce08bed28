"""Loading landed files into raw tables, each offset once.

May import `landing.tailing` and the folders before it.
"""
