"""Names in Redis that the data source reads: fields of a record, of a tombstone, and of the name of the data."""

from __future__ import annotations

#: Fields of a record, as `QueueState.from_fields` takes them.
STATE_FIELDS = ("version", "created_at", "last_id", "trimmed_upto", "enqueued")
#: Fields of a record, as `arrivals.Tally.parse` takes them.
TALLY_FIELDS = ("enqueued", "letters", "letter_bytes")
#: The fields of a record with the sequence of its last message, and with 1 once a dead letter has arrived.
LAST_FIELD, HOLDS_DEAD_LETTERS = "last_id", "holds_dead_letters"
#: Fields of a tombstone, as `Tombstone.from_fields` takes them.
TOMBSTONE_FIELDS = ("created_at", "last_id", "trimmed_upto", "deleted")
#: The field of the name of the data.
DATASET_FIELD = "name"
