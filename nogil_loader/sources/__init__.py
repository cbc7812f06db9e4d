"""Where samples come from: each module is one kind of source."""
