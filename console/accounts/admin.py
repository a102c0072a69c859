from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from console.accounts.models import User

admin.site.site_header = admin.site.site_title = "Weir administration"
admin.site.register(User, UserAdmin)
