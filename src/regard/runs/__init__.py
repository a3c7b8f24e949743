"""A folder <-> config, vocabulary, weights, log."""
