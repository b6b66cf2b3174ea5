"""Benchmarks: methods and peers timed in one run, beside the machine's rates and their error."""
