from django.urls import URLPattern, URLResolver, path

from flywheel.accounts.pages import providers, redaction, settings

app_name = "settings"
# /p/<project>/settings/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", settings.settings_index, name="index"),
    path("members/", settings.add_member, name="add_member"),
    path("members/become-approver/", settings.become_approver, name="become_approver"),
    path("members/<int:pk>/", settings.set_roles, name="set_roles"),
    path("keys/", settings.keys_index, name="keys"),
    path("keys/make/", settings.make_key, name="make_key"),
    path("keys/<int:pk>/revoke/", settings.revoke_key, name="revoke_key"),
    path("gateway/", settings.gateway, name="gateway"),
    path("models/", providers.provider_index, name="providers"),
    path("models/<int:pk>/try/", providers.try_provider, name="try_provider"),
    path("models/<int:pk>/remove/", providers.remove_provider, name="remove_provider"),
    path("redaction/", redaction.policy, name="redaction"),
    path("redaction/try/", redaction.try_redaction, name="try_redaction"),
    path("audit/", settings.audit_log, name="audit"),
]
