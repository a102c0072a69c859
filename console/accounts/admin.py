from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from console.accounts.models import User
from console.accounts.throttling import throttled

admin.site.site_header = admin.site.site_title = "Weir administration"
admin.site.login = throttled(admin.site.login)  # type: ignore[method-assign]
admin.site.register(User, UserAdmin)
