"""What people look at: the report, dashboards, charts, and what commands print on a terminal.

May import stages and engines; no stage imports a page.
"""
