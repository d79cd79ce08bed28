"""What people look at in a browser: the report, dashboards and charts.

May import stages and engines; no stage imports a page.
"""
