"""Onto the accelerator, and out of it into any framework."""
