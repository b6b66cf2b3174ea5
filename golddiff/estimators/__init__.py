"""Denoisers: x = x0 + sigma * eps in, E[x0 | x] out."""
