"""Loops of scripts over the parts of a queue, written out: so no script has a list of parts, and no call builds one.

`each` names one of `keys.LISTS`. The body of the loop stands there once for each part, with names and numbers in place
of the variable. A loop over `states` knows the fields of `AwayState`, too. Before and after:

    for state in each('states') do                  do
      local n = redis.call('ZCARD', q[state.part])    local n = redis.call('ZCARD', q.leases)
    end                                             end
                                                    do
                                                      local n = redis.call('ZCARD', q.delayed)
                                                    end

With a function of one line, `each` is a list of expressions:

    f(each('states', function(state) return q[state.part] end))         f(q.leases, q.delayed)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict

from rqttl.errors import ContractError
from rqttl.protocol.keys import LISTS, STATES

_LOOP = re.compile(r"^( *)for (\w+) in each\('(\w+)'\) do\n(.*?)^\1end\n", re.MULTILINE | re.DOTALL)
_LIST = re.compile(r"\beach\('(\w+)', function\((\w+)\) return (.*?) end\)")


def unroll(script: str, text: str) -> str:
    """Write out each use of `each` in a text without comments. Raises `ContractError` if that is not possible."""

    def bodies(name: str, variable: str, body: str) -> list[str]:
        if name not in LISTS:
            raise ContractError(f"lua: {script}: each: expected one of {', '.join(LISTS)}, got {name}")
        return [_fill(script, body, variable, _constants(part)) for part in LISTS[name]]

    def loop(match: re.Match[str]) -> str:
        indent, variable, name, body = match.groups()
        if re.search(r"\bbreak\b", body):
            raise ContractError(f"lua: {script}: each: a loop that is written out has no break")
        return "".join(f"{indent}do\n{body}{indent}end\n" for body in bodies(name, variable, body))

    def expressions(match: re.Match[str]) -> str:
        return ", ".join(bodies(*match.groups()))

    written = _LIST.sub(expressions, _LOOP.sub(loop, text))
    if re.search(r"\beach\(", written):
        raise ContractError(f"lua: {script}: each: expected a loop with `do` at the end of its line, or a list")
    return written


def _constants(part: str) -> Mapping[str, str]:
    """The fields of the variable of a loop, as Lua writes their values."""
    state = asdict(STATES[part]) if part in STATES else {}
    values = {"part": part, **state}
    return {name: repr(value) if isinstance(value, str) else str(value).lower() for name, value in values.items()}


def _fill(script: str, body: str, variable: str, constants: Mapping[str, str]) -> str:
    part = constants["part"].strip("'")
    filled = body.replace(f"q[{variable}.part]", f"q.{part}")

    def constant(match: re.Match[str]) -> str:
        if match[1] not in constants:
            raise ContractError(f"lua: {script}: each: {part} has no field {match[1] or variable}")
        return constants[match[1]]

    return re.sub(rf"(?<![\w.']){variable}\b(?:\.(\w+))?", constant, filled)
