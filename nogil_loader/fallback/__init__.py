"""What GIL builds do where threads are not enough: worker processes, and a whole run in one."""
