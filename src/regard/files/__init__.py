"""Files on disk: the one way to read what may be anything."""
