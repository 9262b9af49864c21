"""The contract tests that cannot pass on a Redis Cluster, and why.

All others pass there as they are, with queues on three nodes: `make test-cluster`. See `fake_cannot.py`.
"""

from __future__ import annotations

POOL = "makes a pool of one server; on a cluster each node has its own"

#: "file::test" or "file::test[case]" -> why
CLUSTER_CANNOT: dict[str, str] = {
    "test_connections.py::test_a_wait_may_be_longer_than_the_time_out_of_the_client": POOL,
    "test_connections.py::test_a_command_waits_for_a_connection_that_another_thread_has": POOL,
    "test_connections.py::test_a_pool_of_one_connection_is_enough": POOL,
    "test_connections.py::test_a_wait_without_a_free_connection_in_a_small_pool_ends_with_the_limit_of_the_pool": POOL,
    "test_connections.py::test_in_a_pool_that_blocks_a_wait_takes_the_place_that_becomes_free": POOL,
    "test_connections.py::test_a_command_that_gets_no_connection_tells_the_limit": POOL,
}
#: The same, of tests that would wait for ever, or that pass on some runs only.
CLUSTER_WAITS: dict[str, str] = {}
