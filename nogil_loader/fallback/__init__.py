"""What GIL builds do where threads are not enough."""
