"""Random schedules: what may happen to a lake while several runners build it, and what must hold all the same."""
