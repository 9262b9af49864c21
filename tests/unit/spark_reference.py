"""The tables of the Spark data source's README, made from the code."""

from collections.abc import Mapping

from spark_connectors.columns.schema import BODY_JSON, COLUMNS, DEATH_DDL
from spark_connectors.options.table import OPTIONS, Option
from spark_connectors.write.plan import LETTER_COLUMNS, MESSAGE_COLUMNS, Column
from tests.unit.reference import table

_VALUES = {
    "url": "URL",
    "text": "text",
    "path": "path",
    "secret": "text",
    "flag": "`true`, `false`",
    "namespace": "name",
    "duration": "duration",
    "queues": "names",
    "pattern": "pattern",
    "offsets": "word or JSON",
    "instant": "time",
    "queue": "name",
}
_PLACES = {("batch", "stream", "write"): "all", ("batch", "stream"): "read"}


def _value(option: Option) -> str:
    if option.kind == "choice":
        return ", ".join(f"`{word}`" for word in option.choices)
    if option.kind == "size":
        return f"bytes ≥ {option.minimum:,}"
    return f"number ≥ {option.minimum:,}" if option.kind == "count" else _VALUES[option.kind]


def _default(option: Option) -> str:
    if option.default is None:
        return ""
    return f"{int(option.default):,}" if option.kind == "count" else f"`{option.default}`"


def options_table() -> str:
    rows = [
        [f"`{o.name}`", _PLACES.get(o.uses, o.uses[0]), _value(o), _default(o), o.meaning] for o in OPTIONS.values()
    ]
    return table(["option", "of", "value", "default", "meaning"], rows)


def columns_table() -> str:
    every = [*COLUMNS.values(), BODY_JSON]
    types = {f"array<{DEATH_DDL}>": "array of structs"}
    return table(["column", "type", "meaning"], [[f"`{c.name}`", types.get(c.ddl, c.ddl), c.meaning] for c in every])


def written_table() -> str:
    def rows(operation: str, columns: Mapping[str, Column]) -> list[list[str]]:
        return [[operation, f"`{name}`", column.types, column.meaning] for name, column in columns.items()]

    written = [*rows("enqueue", MESSAGE_COLUMNS), *rows("redrive, purge", LETTER_COLUMNS)]
    return table(["operation", "column", "type", "meaning"], written)
