from django.urls import URLPattern, URLResolver, path

from flywheel.accounts import redaction_views, views

app_name = "settings"
# /p/<project>/settings/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.settings_index, name="index"),
    path("members/", views.add_member, name="add_member"),
    path("members/<int:pk>/", views.set_roles, name="set_roles"),
    path("keys/", views.keys_index, name="keys"),
    path("keys/make/", views.make_key, name="make_key"),
    path("keys/<int:pk>/revoke/", views.revoke_key, name="revoke_key"),
    path("gateway/", views.gateway, name="gateway"),
    path("redaction/", redaction_views.policy, name="redaction"),
    path("redaction/try/", redaction_views.try_redaction, name="try_redaction"),
    path("audit/", views.audit_log, name="audit"),
]
