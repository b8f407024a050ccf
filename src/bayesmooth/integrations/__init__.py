"""Integrations with other frameworks: one file each, which nothing else here imports, each with its own extra."""
