"""Plain records of results, attention weights and search trees, without torch."""
