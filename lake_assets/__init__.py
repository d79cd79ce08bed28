"""Fact and dimension tables that stay right while their data comes late, changes, and must be erased."""
