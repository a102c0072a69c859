"""REST for programs, under /api/v1/. It calls the services that the pages call."""
