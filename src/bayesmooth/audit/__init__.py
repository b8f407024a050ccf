"""The audit of labels: scores, a ranked table of wrong labels and ambiguous examples, one HTML file to review it in."""

from bayesmooth.audit.api import audit, audit_network, audit_probabilities, audit_votes
from bayesmooth.audit.table import Audit

__all__ = ["Audit", "audit", "audit_network", "audit_probabilities", "audit_votes"]
