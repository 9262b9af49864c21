"""Names in Redis that the data source reads by itself: parts of a queue, and fields of its record and its tombstone."""

from __future__ import annotations

#: Parts of a queue, for `Keyspace.key`: log, messages outside the log, record, tombstone of a deleted queue.
LOG, DETACHED, META, TOMBSTONE = "log", "detached", "meta", "tombstone"

_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED = "version", "created_at", "last_id", "trimmed_upto", "enqueued"
#: Fields of a record, as `QueueState.from_fields` takes them.
STATE_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED)
#: Fields of a record, as `plan.queue_snapshots` takes them.
SNAPSHOT_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, "holds_dead_letters")
#: Fields of a tombstone, as `Tombstone.from_fields` takes them.
TOMBSTONE_FIELDS = (_CREATED_AT, _LAST, _TRIMMED)
