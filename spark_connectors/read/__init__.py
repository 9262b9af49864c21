"""Reading dead letters in bulk: the plan, its parts, and losses on the way."""
