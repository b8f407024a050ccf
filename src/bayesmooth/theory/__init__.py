"""The paper in code: pure functions on tensors."""
