"""Onto the accelerator, and out of it into any framework."""

from nogil_loader.device.batch import export
from nogil_loader.device.pixels import normalize
from nogil_loader.device.transfer import Transfer, open_transfer

__all__ = ["Transfer", "export", "normalize", "open_transfer"]
