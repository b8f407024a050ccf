"""Which labels are wrong, which examples ambiguous: scores, a ranked table, one HTML file to review it in."""

from bayesmooth.audit.entry import audit
from bayesmooth.audit.result import Audit

__all__ = ["Audit", "audit"]
