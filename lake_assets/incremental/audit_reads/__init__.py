"""What audits read by themselves: counts by metadata, and rows by plain queries.

An audit compares what the stager made with what is read here. So nothing here shares code with the stager: this folder
imports neither `staging` nor `base.time_filters`, and a test holds that. May import `incremental.planning` and the
folders before it.
"""
