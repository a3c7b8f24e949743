"""Ctrl-C that comes while Python cannot raise it."""

import sys
import threading
from _thread import interrupt_main

AGAIN = 0.1
"""Seconds until it is tried again: by then the code that swallowed it has ended."""


def repeat_ignored_interrupts() -> None:
    """Interrupt again when Ctrl-C came inside a `__del__` or another callback of Python.

    Python prints "Exception ignored" there and goes on, as if nobody had pressed it. Locks, files
    and temporary folders have such methods, and training opens many of them.
    """
    print_ignored = sys.unraisablehook

    def interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            print_ignored(ignored)
            return
        timer = threading.Timer(AGAIN, interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = interrupt_again
