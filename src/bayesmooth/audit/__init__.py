"""Which labels are wrong, which examples ambiguous: scores, a ranked table, one HTML file to review it in."""

from bayesmooth.audit.api import audit
from bayesmooth.audit.table import Audit

__all__ = ["Audit", "audit"]
