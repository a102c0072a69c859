"""The REST API under /api/v1/. It calls the same services as the pages."""
