"""The same formulas, fast. Everything works without this folder, only slower."""
