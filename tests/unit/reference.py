"""The table of errors, made from the code."""

from __future__ import annotations

from rqttl import RqttlError, errors
from rqttl.cli.common.exits import exit_code


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def public_errors() -> list[type[RqttlError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RqttlError)]
    return [one for one in found if one is not RqttlError]


def errors_table() -> str:
    rows = []
    for one in public_errors():
        when, what_to_do = (" ".join(part.split()) for part in (one.__doc__ or "").split("\n\n"))
        rows.append([f"`{one.code}`", f"`{one.__name__}`", str(exit_code(one)), when, what_to_do])
    return table(["code", "error", "exit", "when", "what to do"], rows)
