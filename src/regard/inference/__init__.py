"""Translation: from text to text."""
