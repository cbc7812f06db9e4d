"""The pure core, its threads and its buffers."""
