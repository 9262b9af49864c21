"""Bulk reads of queues: the plan, its partitions, and the detection of losses."""
