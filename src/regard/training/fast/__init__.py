"""Faster steps: fused arithmetic, packed rows, compiled blocks, captured graphs.

Everything works without this folder, only slower.
"""
