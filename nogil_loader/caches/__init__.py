"""Where ``cache`` keeps samples: in memory, or in a folder."""
