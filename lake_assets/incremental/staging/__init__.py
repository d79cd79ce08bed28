"""The rows of a session on Spark: read, validate, build, write them where nobody reads yet, and audit them.

`stage` prepares a session; `prepared_rows` is its result and its write; `audits` evaluate what was written. May import
`incremental.audit_reads` and the folders before it.
"""
