"""The asyncio interface: the classes of the sync interface with `await`, on the same flows and the same scripts."""
