"""Model files as metadata and array views: memory-mapped, every size checked before it is used."""
