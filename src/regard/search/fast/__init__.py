"""Searches as captured graphs. Everything works without this folder, only slower."""
