"""Streams over several servers: a planner for each server, one offset and one limit for all."""
