"""The nogil-loader command."""
