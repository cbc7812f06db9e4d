"""What happened and where the time went."""
