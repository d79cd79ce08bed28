"""The engine: finds what changed, plans sessions, builds, audits and publishes them, and remembers their state."""
