"""The one exception a caller's mistake raises: its text is the whole message, ready to be shown to a person."""


class UserError(Exception):
    """Something the caller can put right. Says what, where and what to do; the command line prints it and exits 2."""
