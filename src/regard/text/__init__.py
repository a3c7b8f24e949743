"""Strings to ids and back. Knows no torch."""
