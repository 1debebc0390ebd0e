"""The ``perfkit`` command as a process, also as ``python -m perfkit`` for launchers (torchrun)."""

import signal
import sys

_OWN_ENDS = ("run", "synclint")


def main() -> int:
    """Run the command; Ctrl-C ends it in one line also while it is loaded, and as it ends."""
    try:
        from perfkit.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("perfkit: interrupted\n")
        return 130
    code = command()
    if sys.argv[1:2] and sys.argv[1] not in _OWN_ENDS:  # those hold the user's program
        # the interpreter's own end takes a while, and a Ctrl-C in it would show its insides
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
