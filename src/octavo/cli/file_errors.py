"""Errors of the system about files, in a line for people."""

from __future__ import annotations


def told(error: Exception) -> str:
    """Return an error's message; that of the system names the file first, without a number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)
