"""Users, API tokens, permissions and refusals."""
