"""From bytes, paths and buffers to arrays: each module is one kind of medium."""
