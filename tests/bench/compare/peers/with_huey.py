"""Huey: a message is taken from Redis before its handler runs, so at most once."""

from __future__ import annotations

import shared
from huey import RedisHuey

huey = RedisHuey("q", url=shared.URL, results=False)


@huey.task()
def work(body: str) -> None:
    shared.handle(body)


def main() -> None:
    role, mode, count = shared.arguments()
    if role == "produce":
        import with_huey  # the name of a task begins with that of its module, which is not `__main__` for the consumer

        shared.produce(mode, count, with_huey.work)
        return
    kind = ("-w", "2", "-k", "process") if mode == "workers" else ("-w", "1", "-k", "thread")
    shared.become("huey.bin.huey_consumer", "with_huey.huey", *kind, "-n", "-q")


if __name__ == "__main__":
    main()
