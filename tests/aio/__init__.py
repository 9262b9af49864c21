"""Tests of the asyncio interface that have no sync counterpart: cancellation, loops, the shared connection, closing."""
