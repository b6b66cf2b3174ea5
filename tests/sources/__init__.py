"""Tests of the readers of training images."""
