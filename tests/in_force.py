"""The options that are in force in a Redis, compared with the plain reference. It shares no code with the package."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis

from rqttl import Broker, Policy
from rqttl.options import OPTIONS, SCRIPT_OPTIONS
from rqttl.protocol.keys import PARTS, Keyspace
from rqttl.store.driver import driver_of
from tests.drivers import redis_of
from tests.unit.policies import reference

#: Options that scripts read from each record, also if they have their defaults.
ALWAYS = ("overflow", "on_expire")


def problems(broker: Broker) -> list[str]:
    """All that is not as declared options and policies want it, and all keys that belong to no queue."""
    driver = driver_of(broker)
    return sorted(_problems(redis_of(driver), driver.keyspace))


def _problems(client: redis.Redis, keyspace: Keyspace) -> Iterator[str]:
    fields: Any = client.hgetall(keyspace.policies)
    version = fields.pop(b"version", b"0")
    policies = [_policy(field.decode(), text) for field, text in fields.items()]
    shared = (keyspace.policies, keyspace.registry, keyspace.dataset)
    keys = set(client.scan_iter(count=1000)) - {name.encode() for name in shared}
    listed: Any = client.smembers(keyspace.registry)
    for key in sorted(keys):
        queue, part = keyspace.split(key) or ("", "")
        if not queue or (keyspace.key(queue, "meta").encode() not in keys and not PARTS[part].outlives):
            yield f"{key.decode()} is left over"
        elif part == "meta":
            record: Any = client.hgetall(key)
            if queue.encode() not in listed:
                yield f"{queue} is not listed"
            yield from _differences(queue, record, policies, version)


def _policy(field: str, text: bytes) -> Policy:
    kind, name = field.split(" ")
    return Policy.from_json(name, kind == "operator", text)


def _differences(
    queue: str, fields: Mapping[bytes, bytes], policies: Sequence[Policy], version: bytes
) -> Iterator[str]:
    record = {name.decode(): value for name, value in fields.items()}
    if record["policies"] != version:
        yield f"{queue} names the policies {record['policies']!r}, stored are {version!r}"
    expected = reference.in_force(queue, json.loads(record["declared"]), policies)
    found = json.loads(record["options"])
    if found != expected:
        yield f"{queue} has {found} in force, should have {expected}"
    lifetime = {"expires", "auto_delete_on_idle"} & expected.keys()
    for name, use in SCRIPT_OPTIONS.items():
        if use == "lifetime" and not lifetime:
            continue
        value = expected.get(name, OPTIONS[name].default if name in ALWAYS else None)
        text = None if value is None else str(int(value) if isinstance(value, int) else value).encode()
        if record.get(name) != text:
            yield f"{queue}: scripts read {record.get(name)!r} as {name}, should read {text!r}"
