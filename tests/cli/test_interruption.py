"""Ctrl-C that comes while Python cannot raise it."""

import subprocess
import sys
import textwrap

SWALLOWED = textwrap.dedent(
    """
    import signal, sys, time
    import regard.cli

    class Lock:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0)  # Python looks for signals here at the latest

    @regard.cli.app.command()
    def wait():
        Lock()
        for _ in range(3000):
            time.sleep(0.01)
        print("nobody pressed it")

    sys.argv = ["regard", "wait"]
    regard.cli.main()
    """
)


def test_an_interrupt_inside_a_finalizer_still_stops_the_command():
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True)

    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == ""


def test_other_ignored_exceptions_are_still_printed():
    other = SWALLOWED.replace("signal.raise_signal(signal.SIGINT)", "1 / 0").replace("3000", "1")
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)

    assert done.returncode == 0
    assert "ZeroDivisionError" in done.stderr
    assert done.stdout == "nobody pressed it\n"
