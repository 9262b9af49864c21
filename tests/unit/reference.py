"""Generated tables of the documentation: errors, and options of queues."""

import re

import rqttl
from rqttl import RqttlError, errors
from rqttl.cli.common.errors import exit_code
from rqttl.errors import InvalidInput
from rqttl.options import OPTIONS, Option
from rqttl.units import as_text
from tests.repository import ROOT

#: The line of pyproject.toml that has the address of the repository; empty as long as it is not known.
[REPOSITORY] = re.findall(r'^repository = "(.*?)/?"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)


def between(mark: str) -> re.Pattern[str]:
    """Finds generated text."""
    return re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=^[ #]*<!-- /{mark} -->)", re.DOTALL | re.MULTILINE)


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


def owner(repository: str = REPOSITORY) -> str:
    """The rule of CODEOWNERS: who owns the repository reviews all of it."""
    return f"* @{repository.split('/')[-2]}" if repository else "# Nobody yet: the address is not known."


def verifying(repository: str = REPOSITORY) -> str:
    """The commands that tell whether a package is one of this repository."""
    note = "" if repository else "\n\n`ADDRESS` is the one of this repository."
    return f"""```text
sha256sum --check --ignore-missing SHA256SUMS
pypi-attestations verify pypi --repository {repository or "ADDRESS"} pypi:rqttl-{rqttl.__version__}-py3-none-any.whl
```{note}"""


#: The type that each kind of option has in Python.
TYPES = {
    "duration": "Duration",
    "count": "int",
    "size": "Size",
    "number": "float",
    "flag": "bool",
    "target": "str",
    "rate": "str",
}


def takes(option: Option, value: object) -> bool:
    try:
        option.read(option.name, value)
    except InvalidInput:
        return False
    return True


def values_of(option: Option) -> str:
    if option.kind == "number":
        return "any number ≥ 1" if takes(option, 2) else "any number from 0 to 1"
    if option.kind in ("duration", "count", "size"):
        return f"{option.kind.replace('count', 'number')} {'≥' if takes(option, 0) else '>'} 0"
    if option.kind == "choice":
        return ", ".join(f"`{word}`" for word in option.choices)
    if option.kind == "target":
        return "queue or template" + (", or empty" if takes(option, "") else "")
    if option.kind == "rate":
        return "number / time"
    return "`true`, `false`"


def default_of(option: Option) -> str:
    if option.name.startswith("dead_letter_"):
        return "`dead_letter`"
    if option.default is None:
        return "none"
    if option.kind == "duration":
        return as_text(int(option.default))
    return f"{option.default:,}" if option.kind in ("count", "size") else f"`{option.default}`".lower()


def options_table() -> str:
    rows = [[f"`{o.name}`", values_of(o), default_of(o), o.meaning] for o in OPTIONS.values()]
    return table(["option", "value", "default", "meaning"], rows)


def type_of(option: Option) -> str:
    if option.kind == "choice":
        words = ", ".join(f'"{word}"' for word in option.choices)
        return f"Literal[{words}]"
    return TYPES[option.kind]


def option_keys() -> str:
    """The keys of the typed dictionary."""
    return "\n".join(f"    {o.name}: {type_of(o)} | None" for o in OPTIONS.values())
