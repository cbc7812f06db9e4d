"""Order as arithmetic: permutation, shard, mix, pack and resume, without threads or I/O."""
