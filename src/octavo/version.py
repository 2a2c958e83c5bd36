"""The version, also the package's: asking the package for it takes 30 ms of every start."""

__version__ = "0.1.0"
