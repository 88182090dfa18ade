"""Project settings, for admins: members, keys, redaction, the gateway's upstream; and the log of changes to them."""
