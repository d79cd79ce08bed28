"""Tests of what `lake` does for shells and for the machine."""
