"""`lake new`: the templates of a new table's files, and the functions that fill them in. `lake land`: its first rows.

May import `errors`, `base`, and of `incremental` the declarations and the metadata of tables.
"""
