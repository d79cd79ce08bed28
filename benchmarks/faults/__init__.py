"""Faults on the services of `lake up` while data flow: who heals, how fast, and whether a row is lost or doubled.

`make faults` plays all of them and writes the table into docs/reliability.md.
"""
