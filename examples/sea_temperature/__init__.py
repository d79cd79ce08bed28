"""The temperature of a sea, declared in YAML and SQL alone: a fact whose rows come late, and a state by day."""
