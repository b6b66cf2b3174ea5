"""Supports as small as an error allows: ranked cheaply, sized by measurement."""
