"""Constrained decoding: which tokens a grammar allows next.

llguidance does the parsing; it is imported when it is first needed.
"""
