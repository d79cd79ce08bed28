"""Earthquakes of 2024, declared in YAML and SQL alone: a fact whose rows come late, and an aggregate by day."""
