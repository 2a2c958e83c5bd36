"""Measurements of the real engine: each prints a table for people and, if asked, one line of JSON with its recipe."""
