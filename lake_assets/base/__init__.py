"""What all other packages use: hours, grains, filters by hours, the search for ids, texts of errors, failpoints.

May import `errors` and `settings`.
"""
