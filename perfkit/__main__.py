"""The ``perfkit`` command as a process, also as ``python -m perfkit`` for launchers (torchrun)."""

import signal
import sys

# These run the user's program, whose handlers of signals are its own to the end.
_RUN_A_PROGRAM = ("run", "synclint")


def main() -> int:
    """Run the command. Ctrl-C while it loads is one line, and as the interpreter ends, nothing."""
    try:
        from perfkit.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("perfkit: interrupted\n")
        return 130
    typed = sys.argv[1:2]  # `run` leaves the program's own there
    code = command()
    is_ours = typed and typed[0] not in _RUN_A_PROGRAM
    # where Ctrl-C is ignored (nohup, a background job), it stays so
    if is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # to end takes the interpreter a while, and a Ctrl-C in it would show its insides
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
