"""The story end to end: train, evaluate, prune, demo.

The command line does nothing but call these.
"""
