"""What everything uses and that uses nothing of ours: hours, grains, filters by hours, ids in decoded data, failpoints.

May import `errors` and `settings`.
"""
