"""Pairs of texts to batches of ids. Only `regard.data.batches` needs torch."""
