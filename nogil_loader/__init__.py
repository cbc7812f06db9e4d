"""Data loading on threads that really run at the same time."""

__version__ = "0.1.0"
