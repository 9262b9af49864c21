"""The one table that declares the options of the data source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Use = Literal["batch", "stream", "write"]

_ALL: tuple[Use, ...] = ("batch", "stream", "write")
_READ: tuple[Use, ...] = ("batch", "stream")
_BATCH: tuple[Use, ...] = ("batch",)
_STREAM: tuple[Use, ...] = ("stream",)
_WRITE: tuple[Use, ...] = ("write",)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` says how its text is read (`values.READ`), `default` is such a text, `uses` who knows it.

    `choices` are the values of kind `choice`; `least` and `most` bound a count, `least` a duration in ms.
    """

    name: str
    kind: str
    default: str | None
    uses: tuple[Use, ...]
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 2**53 - 1


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("url", "url", "redis://localhost:6379/0", _ALL,
            "where Redis is: `redis://`, `rediss://` or `unix://`"),
        Option("username", "text", None, _ALL,
            "ACL user"),
        Option("passwordEnv", "text", None, _ALL,
            "environment variable that holds the password, on the driver and on every executor"),
        Option("passwordFile", "path", None, _ALL,
            "file that holds the password, on the driver and on every executor"),
        Option("password", "secret", None, _ALL,
            "the password itself; it travels with every task, so one of the two above is better"),
        Option("tlsCaFile", "path", None, _ALL,
            "certificates to trust with `rediss://`; without it those of the system"),
        Option("tlsCertFile", "path", None, _ALL,
            "certificate of the client"),
        Option("tlsKeyFile", "path", None, _ALL,
            "private key of the client"),
        Option("tlsVerify", "flag", "true", _ALL,
            "whether certificate and name of the server are checked"),
        Option("namespace", "namespace", "rqttl", _ALL,
            "the namespace of the queues"),
        Option("socketTimeout", "duration", "30s", _ALL,
            "how long a reply may take", least=1),
        Option("connectRetries", "count", "5", _ALL,
            "how often a lost connection is made again before the task fails", most=1000),
        Option("retryBackoff", "duration", "200ms", _ALL,
            "pause before the first of these attempts; each further one waits twice as long, 10 s at most"),
        Option("queues", "queues", None, _READ,
            "the queues to read, with commas between them; `load(...)` means the same"),
        Option("queuePattern", "pattern", None, _READ,
            "instead: all queues that match, `#` any words, `*` one word, words separated by dots"),
        Option("startingOffsets", "offsets", "earliest", _READ,
            '`earliest`, JSON `{"queue": "sequence"}` to begin behind these, or, for a stream, `latest`'),
        Option("endingOffsets", "offsets", "latest", _BATCH,
            '`latest`, or JSON `{"queue": "sequence"}` to end with these'),
        Option("startingTimestamp", "instant", None, _READ,
            "begin with what died at this time or later; wins over `startingOffsets`"),
        Option("endingTimestamp", "instant", None, _BATCH,
            "end with what died before this time; wins over `endingOffsets`"),
        Option("numPartitions", "count", None, _READ,
            "how many tasks read; without it as many as `rowsPerPartition` asks for", least=1, most=100_000),
        Option("rowsPerPartition", "count", "250000", _READ,
            "about how many messages a task reads", least=1),
        Option("maxPartitions", "count", "64", _READ,
            "the most tasks that `rowsPerPartition` may ask for", least=1, most=100_000),
        Option("splitMethod", "choice", "auto", _READ,
            "how a large queue is split: where its messages are dense (`probe`), evenly in time (`time`), whichever of "
            "the two seems flatter (`auto`), or not at all (`none`)", ("auto", "time", "probe", "none")),
        Option("fetchEntries", "count", "1000", _READ,
            "the most entries that one request asks for. A task waits a round trip for each: where Redis is "
            "milliseconds away, 5,000, with `fetchBytes` of 2 MB, reads about three times as fast",
            least=1, most=100_000),
        Option("fetchBytes", "count", "524288", _READ,
            "about how large a reply should be; of large entries a request asks for fewer", least=1024),
        Option("failOnDataLoss", "flag", "true", _READ,
            "whether to fail when messages were removed by retention, a limit or a purge, or with their queue, before "
            "they were read"),
        Option("decode", "choice", "none", _READ,
            "`json` adds the column `body_json`: msgpack bodies as JSON text", ("none", "json")),
        Option("pushFilters", "flag", "false", _BATCH,
            "let Spark push filters on `queue` and `died_at` down; read the warning first"),
        Option("maxEntriesPerTrigger", "count", None, _STREAM,
            "the most messages of a micro-batch, shared out over the queues", least=1),
        Option("maxBytesPerTrigger", "count", None, _STREAM,
            "the same in bytes of headers and bodies; a message that is larger makes a batch of its own", least=1),
        Option("operation", "choice", "enqueue", _WRITE,
            "`enqueue` the rows, `redrive` dead letters back to their source, or `purge` them",
            ("enqueue", "redrive", "purge")),
        Option("queue", "queue", None, _WRITE,
            "the queue of all rows; without it the column `queue` names it; `save(...)` means the same"),
        Option("idempotency", "choice", "required", _WRITE,
            "`required`: each row of `enqueue` has an `id`, and is stored once however often it is written; `off`: "
            "what is written again, as after a failed task, is stored again", ("required", "off")),
        Option("idempotencyTtl", "duration", "1d", _WRITE,
            "for how long an id is remembered, unless the `duplicate_window` of the queue is longer", least=1),
        Option("batchEntries", "count", "250", _WRITE,
            "rows of one script call", least=1, most=250),
        Option("maxInFlight", "count", "4", _WRITE,
            "script calls that a task sends at once", least=1, most=64),
        Option("maxQueueDepth", "count", None, _WRITE,
            "the most ready messages that a queue is filled up to; tasks that fill it together may exceed it by a few "
            "calls", least=1),
        Option("onFull", "choice", "wait", _WRITE,
            "what to do then, and while Redis has no memory left: `wait` for consumers, or `error`",
            ("wait", "error")),
        Option("fullTimeout", "duration", "10m", _WRITE,
            "the longest such wait without a row written; then the task fails", least=1),
        Option("onRefused", "choice", "error", _WRITE,
            "what follows from rows that cannot be written, while all others are: the job fails in the end (`error`), "
            "or logs how many and which (`report`)", ("error", "report")),
        Option("rejectedPath", "path", None, _WRITE,
            "folder for such rows, as JSON lines, one file for each task that has any; the job does not fail then. "
            "Every executor must be able to write there"),
    )
}  # fmt: skip
