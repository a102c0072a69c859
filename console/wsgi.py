"""The WSGI application of the web server."""

import gc
import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
application = get_wsgi_application()

# A full collection of garbage stops all threads. It took 100 ms every 15 requests, mostly for modules and tables that
# never become garbage.
import_module(settings.ROOT_URLCONF)  # with all views
gc.collect()
gc.freeze()
# With few objects left, Python's threshold of 700 makes full collections frequent, while the rows of a request are
# alive. Collections then take 1.8 ms of a request of 30 ms, and 0.7 ms with this threshold.
gc.set_threshold(20_000)
