"""Entries of a log as columns of Arrow."""
