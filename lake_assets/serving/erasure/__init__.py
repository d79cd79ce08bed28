"""What an erasure leaves in served tables, and the certificate of them.

May import `serving.store`.
"""
