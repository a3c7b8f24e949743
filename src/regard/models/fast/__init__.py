"""States for captured graphs. Everything works without this folder, only slower."""
