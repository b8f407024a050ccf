"""Variational learning as adaptive label smoothing: train on imperfect labels, and find the wrong ones."""

__version__ = "0.1.0"
