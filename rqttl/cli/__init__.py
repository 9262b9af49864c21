"""The command line. Parses input and prints output; what is done is done by the library.

Answers go to stdout, notes and errors to stderr. Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 refused, 4 no Redis.
"""

from rqttl.cli.program import cli


def main() -> None:
    """Run `rqttl` with the arguments of this process, and exit."""
    cli(prog_name="rqttl")


__all__ = ["cli", "main"]
