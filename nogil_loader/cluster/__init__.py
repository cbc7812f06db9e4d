"""Which rank of how many, and the little that ranks say to each other."""
