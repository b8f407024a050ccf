"""The demo: cross-entropy, label smoothing and IVON on digits with wrong labels, and fig:illustration drawn from it."""

from bayesmooth.lab.studies.figures.demo.entry import Demo, demo

__all__ = ["Demo", "demo"]
