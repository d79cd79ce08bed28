"""Loading landed files into raw tables, each offset once.

May import `landing.consume` and the folders before it.
"""
