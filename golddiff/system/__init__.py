"""Files, locks, threads and memory of the machine."""
