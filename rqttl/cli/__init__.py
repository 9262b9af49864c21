"""The command line. It parses input and prints output; the library does the work.

Answers go to stdout, notes and errors to stderr. Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 refused, 4 Redis cannot
be reached, 5 the answer was not written.
"""

from rqttl.cli.program import cli


def main() -> None:
    """Run `rqttl` with the arguments of this process, and exit."""
    cli(prog_name="rqttl")


__all__ = ["cli", "main"]
