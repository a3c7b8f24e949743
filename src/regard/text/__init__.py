"""Tokenizers: text to ids and back, without torch."""
