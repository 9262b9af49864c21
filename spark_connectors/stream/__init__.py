"""Following dead letters with Structured Streaming."""
