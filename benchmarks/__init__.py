"""Benchmarks that anyone can run again: ``python -m benchmarks [NAME…]``."""
