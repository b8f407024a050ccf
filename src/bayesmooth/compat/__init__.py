"""Names of other packages on our code, so that their users switch by changing an import."""
