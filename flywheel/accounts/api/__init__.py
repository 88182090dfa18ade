"""Members, keys and the audit log for programs; with the scope `admin`, as the pages under Settings."""
