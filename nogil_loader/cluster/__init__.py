"""Which rank of how many, and the little that ranks say to each other."""

from nogil_loader.cluster.detect import Found, connect, find
from nogil_loader.cluster.group import ClusterError, Group, RankFailed, Ranks, Solo

__all__ = ["ClusterError", "Found", "Group", "RankFailed", "Ranks", "Solo", "connect", "find"]
