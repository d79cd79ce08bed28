"""What a session costs on an object store, by its rows, the executors, the partitions and the snapshots."""
