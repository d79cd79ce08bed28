"""Demos that check themselves, and the simulators of their data.

May import everything but `cli`, `definitions` and `resources`.
"""
