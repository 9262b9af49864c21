"""The options of a queue as types: a type checker refuses misspelt names and values of wrong types.

`python -m tests.unit.test_docs` generates the keys from `OPTIONS` in `rqttl/options.py`.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from rqttl.units import Duration, Size


class OptionArguments(TypedDict, total=False):
    """Options of a queue, as keyword arguments of `declare_queue` and `Queue.update`.

    `declare_queue` ignores an option with the value `None`; `update` resets it to its default.
    """

    # <!-- options -->
    message_ttl: Duration | None
    """Default and maximum TTL of every message.

    Value: duration ≥ 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    default_ttl: Duration | None
    """TTL of messages sent without one; turns off `min_ttl` and `max_ttl`.

    Value: duration ≥ 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    min_ttl: Duration | None
    """Shortest TTL that a message gets.

    Value: duration ≥ 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    max_ttl: Duration | None
    """Longest TTL that a message gets.

    Value: duration ≥ 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    never_expire: bool | None
    """Ignore the TTLs of messages.

    Value: `True`, `False`. Default: `False`.
    """
    max_length: int | None
    """Limit of ready messages.

    Value: number ≥ 0. Default: none.
    """
    max_length_bytes: Size | None
    """Limit of the body bytes of ready messages.

    Value: size ≥ 0 (bytes: a number, or text with a unit such as `"500kB"`, `"10MB"` or `"1GiB"`). Default: none.
    """
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] | None
    """Rule for a full queue.

    Value: `drop-head`, `reject-publish`, `reject-publish-dlx`. Default: `drop-head`.
    """
    dead_letter: str | None
    """Target of dead messages, for every reason, such as `{queue}/dead`.

    Value: queue or template (`{queue}` stands for this queue). Default: none.
    """
    dead_letter_expired: str | None
    """Target of expired messages; empty = drop.

    Value: queue or template, or empty (`{queue}` stands for this queue). Default: `dead_letter`.
    """
    dead_letter_maxlen: str | None
    """Target of messages beyond a limit; empty = drop.

    Value: queue or template, or empty (`{queue}` stands for this queue). Default: `dead_letter`.
    """
    dead_letter_rejected: str | None
    """Target of rejected messages; empty = drop.

    Value: queue or template, or empty (`{queue}` stands for this queue). Default: `dead_letter`.
    """
    dead_letter_delivery_limit: str | None
    """Target of messages that failed too often; empty = drop.

    Value: queue or template, or empty (`{queue}` stands for this queue). Default: `dead_letter`.
    """
    expires: Duration | None
    """Time without use after which the queue is deleted.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    auto_delete_on_idle: Duration | None
    """Like `expires`, but arriving messages and `peek` count as use, too.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    on_expire: Literal["drop", "dead-letter", "keep"] | None
    """Treatment of the messages of an expired queue.

    Value: `drop`, `dead-letter`, `keep`. Default: `drop`.
    """
    lease: Duration | None
    """Default lease of a delivery.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: 30s.
    """
    max_deliveries: int | None
    """Failed deliveries after which a message is dead.

    Value: number > 0. Default: none.
    """
    redelivery_delay: Duration | None
    """Delay after the first failed delivery of a message.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    redelivery_multiplier: float | None
    """Factor of the delay for each further failure.

    Value: any number ≥ 1. Default: `1`.
    """
    redelivery_max_delay: Duration | None
    """Longest delay.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    redelivery_jitter: float | None
    """Maximum random reduction of each delay, as a fraction (0 to 1).

    Value: any number from 0 to 1. Default: `0`.
    """
    duplicate_window: Duration | None
    """Time in which a message id is not stored again.

    Value: duration > 0 (a `timedelta`, or text with a unit such as `"30s"`). Default: none.
    """
    max_message_bytes: Size | None
    """Largest body.

    Value: size > 0 (bytes: a number, or text with a unit such as `"500kB"`, `"10MB"` or `"1GiB"`). Default:
    16,777,216.
    """
    # <!-- /options -->
