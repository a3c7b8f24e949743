"""The one exception a caller's mistake raises: its text is the whole message, ready to be shown to a person."""


class UserError(Exception):
    """Something the caller can put right. Says what, where and what to do; the command line prints it and exits with `code`."""

    code = 2


class Failed(UserError):
    """Nothing the caller asked for was wrong, but it could not be done."""

    code = 1
