"""`lake new`: the templates of a new table's files, and the functions that fill them in.

May import `errors`, and the rules for names of `incremental.declaration`.
"""
