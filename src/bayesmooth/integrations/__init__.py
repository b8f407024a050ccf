"""At home in other frameworks: one file each, imported by nobody here, each with its extra (docs/integrations.md)."""
