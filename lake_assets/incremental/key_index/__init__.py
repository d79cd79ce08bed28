"""Which data files of a table contain a value of a column: an index, so that few rows are found without reading all.

The index is derived. It names the snapshot that it describes, follows the table's history from there, and gives no
answer where it cannot: then the caller reads the table. May import `incremental.metadata`, and no folder after it.
"""
